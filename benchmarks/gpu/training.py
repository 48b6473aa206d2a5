"""Trainings of the papers' sizes, epoch by epoch, on a GPU.

A call trains until its budget is spent, saves, and goes on where it ended the next time.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from equilibria.run import recipe as recipes
from equilibria.run.studies.measures.epochs import solves
from equilibria.run.studies.study import Context, Point, Study
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import Chart, Lines, Pivot, first
from papers.published import BAI_2021, BAI_2022, read_published

CIFAR, IMAGENET = (BAI_2022, "Table 3.1", "accuracy"), (BAI_2022, "Table 3.2", "top1")
REGULARIZED = (BAI_2021, "Table 2", "accuracy")
RECIPES: dict[str, tuple[tuple[str, str, str], str] | None] = {
    "lm-ptb-trellisnet-paper": None,
    "mdeq-cifar10-small-gpu": (CIFAR, "MDEQ-small"),
    "mdeq-cifar10-gpu": (CIFAR, "MDEQ, augmented"),
    "mdeq-cifar10-jr-gpu": (REGULARIZED, "CIFAR-10, MDEQ, regularised"),
    "mdeq-cifar10-tiny-paper": (CIFAR, "MDEQ-small"),
    "mdeq-cifar10-large-paper": (CIFAR, "MDEQ, augmented"),
    "mdeq-cifar10-large-jr-paper": (REGULARIZED, "CIFAR-10, MDEQ, regularised"),
    "mdeq-imagenet-small-paper": (IMAGENET, "MDEQ-small"),
    "mdeq-imagenet-large-paper": (IMAGENET, "MDEQ-large"),
    "mdeq-imagenet-xl-paper": (IMAGENET, "MDEQ-XL"),
    "mdeq-imagenet-small-jr-paper": (REGULARIZED, "ImageNet, MDEQ-small, regularised"),
    "mdeq-imagenet-large-jr-paper": (REGULARIZED, "ImageNet, MDEQ-large, regularised"),
}
"""Recipes, and where the papers print the accuracy of what they describe."""


def printed(recipe: str) -> float | None:
    """The accuracy in percent that a paper prints; None where it prints none."""
    place = RECIPES[recipe]
    if place is None:
        return None
    (paper, item, metric), row = place
    return next(each[metric] for each in read_published(paper, item) if each["row"] == row)


def curve(context: Context) -> Iterable[dict[str, Any]]:
    """A row for each epoch, and one of the test split: the task's metric, solves, speed."""
    run = context.run
    primary, split, unit = run.task.primary.name, run.task.eval_split, run.task.unit
    minutes = list(accumulate(epoch["seconds"] / 60 for epoch in run.metrics))
    for epoch, spent in zip(run.metrics, minutes, strict=True):
        yield {
            "epoch": str(epoch["epoch"]),
            "minutes": spent,
            "figure": epoch[split][primary],
            **solves(epoch[split]["forward"]),
            "speed": epoch[unit] / epoch["seconds"],
        }
    if run.evaluation:
        figures = {"figure": run.evaluation[primary], **solves(run.evaluation["forward"])}
        yield {"epoch": "test", "published": printed(str(context.factors["recipe"])), **figures}


STUDY = Study(
    title="Training at the papers' sizes",
    description="Accuracy or perplexity, time, evaluations and speed of each epoch.",
    points=lambda scale: [
        Point(
            factors={"recipe": name},
            measures=[curve],
            runs={"run": Training(recipe=recipes.load(name), minutes=600)},
        )
        for name in RECIPES
    ],
    views=[
        Pivot(
            title="Training",
            index={"recipe": "recipe", "epoch": "epoch"},
            each="epoch",
            values={
                "minutes": "minutes",
                "accuracy or perplexity": "figure",
                "published, %": "published",
                "evaluations, mean": "evals",
                "converged, %": first("converged", 100),
                "images or tokens a second": "speed",
            },
            note="After each epoch on what is held out, or on the test split where nothing is, and "
            "on the test split at the end; minutes of training steps alone.",
        ),
        Chart(
            title="held-out accuracy or perplexity",
            x="minutes",
            y="",
            marks=Lines(x="minutes", y="figure", by=["recipe"], style="marked"),
            log_y=True,
        ),
    ],
)
