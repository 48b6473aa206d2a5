"""mdeq-images as it is on three small data sets, beside simpler classifiers.

Test images; the ResNet is trained for as long. Minutes: all steps, on a busy machine.
"""

from typing import Any, cast

from equilibria.run import evaluation
from equilibria.run import recipe as recipes
from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Context, Point, Study, grid
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import Chart, Lines, Pivot, first, mean, spread
from equilibria.zoo.vision.task.own_images import OwnImages
from papers.mdeq import peer

IMAGES = {"digits": ("digits", 500), "mnist": ("MNIST", 500), "cifar10": ("CIFAR-10", 1_000)}
SET = {name: f"{title}, {count:,} images" for name, (title, count) in IMAGES.items()}


def beside(context: Context) -> dict[str, Any]:
    """Simpler classifiers, and what the recipe has chosen from the data."""
    run, task = context.run.load(), cast(OwnImages, context.run.recipe.task)
    network = peer.compare(run, "test")
    return {
        "linear": evaluation.reference(run.data, context.run.folder, "test")["accuracy"],
        **{f"resnet_{name}": network[name] for name in ("accuracy", "seconds", "epochs")},
        "chosen": f"{task.size} pixels, {'' if task.flip else 'not '}mirrored, shift {task.shift}",
        "passes": run.metrics[-1]["step"] * run.recipe.rows / (task.samples or 1),
    }


def training(data: str, seed: int) -> Training:
    words = f"--task.data {data} --task.samples {IMAGES[data][1]} --task.valid 200 --seed {seed}"
    return Training(recipes.load("mdeq-images", words.split()), 3)


VALUES = {
    "seeds": lambda rows: int(rows["accuracy"].count()),
    "MDEQ, %": spread("accuracy", 100, ".1f"),
    "logistic regression, %": first("linear", 100),
    "ResNet of equal time, %": spread("resnet_accuracy", 100, ".1f"),
    "converged, %": mean("converged", 100),
    "passes": first("passes"),
    "of the ResNet": mean("resnet_epochs"),
    "minutes": mean("seconds", 1 / 60),
    "chosen from the images": "chosen",
}
CURVES = Lines("epoch", "valid_accuracy", by=["data"], label=SET, scale=100)
STUDY = Study(
    paper="",
    title="One's own images",
    points=lambda scale: [  # seed by seed: an early stop leaves all data sets, with fewer seeds
        Point(each, [summary, beside, epochs], {"run": training(**each)})
        for each in grid(seed=(0, 1, 2), data=IMAGES)
    ],
    views=[
        Pivot(title="mdeq-images", index={"data": "images"}, words={"data": SET}, values=VALUES),
        Chart(title="Images set aside", x="epoch", y="accuracy, %", marks=CURVES, whole_x=True),
    ],
)
