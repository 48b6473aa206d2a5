"""CamVid's test images at several scales, mirrored, and through windows.

The networks of mdeq/camvid. Probabilities of scales and mirror images are averaged; the equilibrium
of a coarser scale, and of the image itself for its mirror image, starts the next solve unless it
says otherwise. Evaluations: of one solve. Table 3.3 is of a single scale.
"""

from collections.abc import Iterator
from typing import Any, cast

from equilibria.run import evaluation
from equilibria.run.models import Model
from equilibria.run.studies.measures.epochs import solves
from equilibria.run.studies.study import Context, Point, Study
from equilibria.run.studies.views import Pivot, mean
from equilibria.zoo.vision.model.segmentation import MultiScale, Tiled
from equilibria.zoo.vision.task.segmentation import SegmentationTask
from papers.mdeq.scenes import QUALITY, SEEDS, training_of

SCALES = (1.0, 1.25)
"""Chosen on the validation images of one network."""

VIEWS = {
    "single": "single scale",
    "mirrored": "single scale, mirrored",
    "scales": f"scales {', '.join(map(str, SCALES))}",
    "cold": f"scales {', '.join(map(str, SCALES))}, each solve from zero",
    "all": f"scales {', '.join(map(str, SCALES))}, mirrored",
    "windows": "windows of 96 x 128, overlap 32",
}


def _view(model: Model, view: str) -> Model:
    if view == "windows":
        return Tiled(model, size=(96, 128), overlap=32)
    scales = SCALES if view in ("scales", "cold", "all") else (1.0,)
    mirrored = view in ("mirrored", "all")
    return MultiScale(model, scales=scales, mirrored=mirrored, warm=view != "cold")


def views(context: Context) -> Iterator[dict[str, Any]]:
    """Figures of the test images in each view, and evaluations of a solve."""
    run = context.run.load()
    images = len(cast(SegmentationTask, run.data).images["test"])
    accelerator = evaluation.accelerator("float32", "cpu")
    for view in VIEWS:
        model = run.model if view == "single" else _view(run.model, view).eval()
        found, seconds = evaluation.time_evaluation(
            model, run.data, accelerator, batch_size=run.recipe.eval_batch_size
        )
        figures = {key: value for key, value in found.items() if isinstance(value, int | float)}
        seconds *= figures["pixels"] / images
        yield {"view": view, "image_seconds": seconds, **figures, **solves(found["forward"])}


STUDY = Study(
    item="sec. 3.3.3",
    title="Several views of an image",
    points=lambda scale: [
        Point({"seed": seed}, [views], {"run": training_of("mdeq", seed)}, minutes=4)
        for seed in SEEDS
    ],
    views=[
        Pivot(
            title="CamVid, test images",
            index={"view": "view"},
            words={"view": VIEWS},
            values={
                **QUALITY,
                "evaluations a solve": mean("evals"),
                "converged, %": mean("converged", 100),
            },
        ),
    ],
)
