"""CamVid's test frames in order, each solve started at the last equilibrium.

The networks of mdeq/camvid. The frames are a second apart (every 30th of the video), far more than
a video's usual step. Labels that change: between the two starts, on the same frame, to the recipe's
tolerance.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch

from equilibria.run.models import EquilibriumModel
from equilibria.run.studies.measures.epochs import summary
from equilibria.run.studies.study import Context, Point, Study
from equilibria.run.studies.views import Lines, Pivot, mean
from equilibria.zoo.vision.model.segmentation import upsample
from equilibria.zoo.vision.task.segmentation import SegmentationTask
from papers.mdeq.scenes import SEEDS, training_of


@torch.no_grad()
def frames(context: Context) -> Iterator[dict[str, Any]]:
    """Evaluations of each test frame, started at zero and at the frame before, and what changes."""
    run = context.run.load()
    model, task = cast(EquilibriumModel, run.model), cast(SegmentationTask, run.data)
    images, before = task.images["test"], None
    for place in range(len(images)):
        batch = task.batch_of(images, [place])
        cold = model(batch.inputs)
        warm = cold if before is None else model(batch.inputs, warm=before)
        before = warm.solution
        masks = [upsample(p.output, batch.targets.shape[1:]).argmax(1) for p in (cold, warm)]
        yield {
            "frame": place,
            "cold": int(cold.solution.stats.evals),
            "warm": int(warm.solution.stats.evals),
            "changed": float((masks[0] != masks[1]).float().mean()),
            "right_cold": float((masks[0] == batch.targets).float().mean()),
            "right_warm": float((masks[1] == batch.targets).float().mean()),
        }


STUDY = Study(
    item="sec. 7.2",
    title="Frames of a video",
    points=lambda scale: [
        Point({"seed": seed}, [summary, frames], {"run": training_of("mdeq", seed)})
        for seed in SEEDS
    ],
    views=[
        Pivot(
            title="Test frames of CamVid",
            index={"seed": "seed"},
            values={
                "evaluations from zero": mean("cold"),
                "evaluations from the last frame": mean("warm"),
                "labels that change, %": mean("changed", 100),
                "pixels right from zero, %": mean("right_cold", 100),
                "pixels right from the last frame, %": mean("right_warm", 100),
            },
        ),
        Lines("frame", ("cold", "warm"), by=[], where={"seed": 0}).chart(
            "Evaluations of each frame", "frame", "evaluations", zero=True
        ),
    ],
)
