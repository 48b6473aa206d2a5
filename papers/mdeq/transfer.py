"""MDEQ on CamVid, from scratch and after 10,000 images of CIFAR-10.

The recipe camvid at equal steps; stem and cell begin with the weights of the recipe
mdeq-cifar10-transfer, the head with new ones.
"""

from dataclasses import replace

from equilibria.run import recipe as recipes
from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Point, Study, grid
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import Pivot
from papers.mdeq.scenes import COSTS, QUALITY, SEEDS, chart_validation, training_of

STARTS = {"scratch": "from scratch", "pretrained": "after CIFAR-10"}


def train_first() -> Training:
    """Return the training of the same cell on CIFAR-10 at 32 x 32, which all seeds share."""
    return Training(recipes.load("mdeq-cifar10-transfer"), 15)


def training(start: str, seed: int) -> Training:
    """Return the training on CamVid, from scratch or with the weights of stem and cell."""
    found = training_of("mdeq", seed)
    return found if start == "scratch" else replace(found, after=train_first())


STUDY = Study(
    item="sec. 3.3.3",
    title="Transfer from classification",
    points=lambda scale: [
        Point(
            {"start": each["start"], "seed": each["seed"]},
            [summary, epochs],
            {"run": training(each["start"], each["seed"])},
        )
        for each in grid(seed=SEEDS, start=STARTS)
    ],
    views=[
        Pivot(
            title="CamVid, test images",
            index={"start": "weights"},
            words={"start": STARTS},
            values={**QUALITY, **COSTS},
        ),
        chart_validation("start", STARTS),
    ],
)
