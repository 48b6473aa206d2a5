"""Transfer: CamVid after CIFAR-10, and from scratch, at equal steps."""

from __future__ import annotations

from dataclasses import replace

from equilibria.run import recipe as recipes
from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Point, Study, grid
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import Chart, Lines, Pivot, mean, median, spread
from papers.mdeq.scenes import SEEDS, training_of
from papers.published import BAI_2022

STARTS = {"scratch": "from scratch", "pretrained": "after CIFAR-10"}


def pretraining() -> Training:
    """Return the training of the same cell on CIFAR-10 at 32 x 32, which all seeds share."""
    return Training(recipe=recipes.load("mdeq-cifar10-transfer"), minutes=15)


def training(start: str, seed: int) -> Training:
    """Return the training on CamVid, from scratch or with the weights of stem and cell."""
    found = training_of("mdeq", seed)
    return found if start == "scratch" else replace(found, after=pretraining())


STUDY = Study(
    paper=BAI_2022,
    item="sec. 3.3.3",
    title="Transfer from classification",
    description="MDEQ on CamVid, from scratch and after 10,000 images of CIFAR-10.",
    note="The recipe camvid at equal steps; stem and cell begin with the weights of the recipe "
    "mdeq-cifar10-transfer, the head with new ones.",
    points=lambda scale: [
        Point(
            factors={"start": each["start"], "seed": each["seed"]},
            measures=[summary, epochs],
            runs={"run": training(each["start"], each["seed"])},
        )
        for each in grid(seed=SEEDS, start=STARTS)
    ],
    views=[
        Pivot(
            title="CamVid, test images",
            index={"start": "weights"},
            words={"start": STARTS},
            values={
                "seeds": lambda rows: int(rows["miou"].count()),
                "mean IoU, %": spread("miou", 100),
                "pixel accuracy, %": mean("pixel_accuracy", 100),
                "converged, %": mean("converged", 100),
                "minutes": median("seconds", 1 / 60),
            },
        ),
        Chart(
            title="Validation images after each epoch",
            x="epoch",
            y="mean IoU, %",
            marks=Lines(
                x="epoch", y="valid_miou", by=["start"], label=STARTS, band=True, scale=100
            ),
            whole_x=True,
        ),
    ],
)
