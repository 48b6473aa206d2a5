"""CamVid: the multiscale network beside others of its size, and beside single pixels."""

from __future__ import annotations

from typing import Any

from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Context, Point, Study, grid
from equilibria.run.studies.views import Chart, Lines, Pivot, first, mean, median, spread
from papers.mdeq.scenes import NAMES, SEEDS, recipe_of, training_of
from papers.published import BAI_2022

TREES = "boosted trees on colour and place"
WORDS = {**NAMES, "trees": TREES}


def trees(context: Context) -> dict[str, Any]:
    """Figures of the task's baseline on the test images."""
    task = context.tasks(context.reads[0])
    return {**task.reference("test"), "source": task.source}


STUDY = Study(
    paper=BAI_2022,
    item="sec. 3.3.3",
    title="Street scenes of CamVid",
    description="MDEQ, its cell unrolled, a single-stream DEQ and a U-Net of one size on CamVid.",
    note="11 classes, void excluded; 367 images to learn from and 233 to test on (the split of "
    "SegNet), at 120 x 160 pixels. All networks have the recipe's optimiser, schedule, batches, "
    "epochs and augmentation, chosen with the multiscale network on the validation images. Boosted "
    "trees: scikit-learn's, on the colour and place of single pixels, with classes balanced by the "
    "square root of their pixels.",
    points=lambda scale: [
        Point(factors={"network": "trees", "seed": 0}, measures=[trees], reads=[recipe_of("mdeq")]),
        *(
            Point(
                factors={"network": each["network"], "seed": each["seed"]},
                measures=[summary, epochs],
                runs={"run": training_of(each["network"], each["seed"])},
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
                "seeds": lambda rows: int(rows["miou"].count()),
                "mean IoU, %": spread("miou", 100),
                "pixel accuracy, %": mean("pixel_accuracy", 100),
                "class accuracy, %": mean("class_accuracy", 100),
                "parameters": first("parameters"),
                "evaluations": mean("evals"),
                "converged, %": mean("converged", 100),
                "minutes": median("seconds", 1 / 60),
                "on": "conditions",
            },
        ),
        Chart(
            title="Validation images after each epoch",
            x="epoch",
            y="mean IoU, %",
            marks=Lines(
                x="epoch", y="valid_miou", by=["network"], label=NAMES, band=True, scale=100
            ),
            whole_x=True,
        ),
    ],
)
