"""MDEQ, its cell unrolled, a single-stream DEQ and a U-Net of one size on CamVid.

11 classes, void excluded; 367 images to learn from and 233 to test on (the split of SegNet), at 120
x 160 pixels. All networks have the recipe's optimiser, schedule, batches, epochs and augmentation,
chosen with the multiscale network on the validation images. Boosted trees: scikit-learn's, on the
colour and place of single pixels, with classes balanced by the square root of their pixels.
"""

from typing import Any

from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Context, Point, Study, grid
from equilibria.run.studies.views import Pivot, first, mean
from papers.mdeq.scenes import (
    COSTS,
    NAMES,
    QUALITY,
    SEEDS,
    chart_validation,
    recipe_of,
    training_of,
)

TREES = "boosted trees on colour and place"
WORDS = {**NAMES, "trees": TREES}


def trees(context: Context) -> dict[str, Any]:
    """Figures of the task's baseline on the test images."""
    task = context.tasks(context.reads[0])
    return {**task.reference("test"), "source": task.source}


STUDY = Study(
    item="sec. 3.3.3",
    title="Street scenes of CamVid",
    points=lambda scale: [
        Point({"network": "trees", "seed": 0}, [trees], reads=[recipe_of("mdeq")]),
        *(
            Point(
                {"network": each["network"], "seed": each["seed"]},
                [summary, epochs],
                {"run": training_of(each["network"], each["seed"])},
            )
            for each in grid(seed=SEEDS, network=NAMES)
        ),
    ],
    views=[
        Pivot(
            title="CamVid, test images",
            index={"network": "network"},
            words={"network": WORDS},
            values={
                **QUALITY,
                "class accuracy, %": mean("class_accuracy", 100),
                "parameters": first("parameters"),
                "evaluations": mean("evals"),
                **COSTS,
                "on": "conditions",
            },
        ),
        chart_validation("network", NAMES),
    ],
)
