"""Train a recipe on images in calls of a few minutes, each of which goes on where the last one
ended.

``python benchmarks/gpu/vision.py mdeq-cifar10-small-gpu --budget 9`` trains for nine minutes, saves
and says how far it is; the same line goes on. At the end results/gpu-<recipe>.json and .svg have
accuracy, time, evaluations and images a second of each epoch, and of the test images, beside what
the thesis prints.
"""

from collections.abc import Sequence
from typing import Any

from training import call

from equilibria.bench.record import Table
from equilibria.experiments.case import Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import Page
from equilibria.experiments.published import CIFAR, IMAGENET, IMAGES

PUBLISHED = {
    "mdeq-cifar10-small-gpu": next(r.accuracy for r in CIFAR if r.model == "MDEQ-small"),
    "mdeq-cifar10-gpu": next(r.accuracy for r in CIFAR if r.model == "MDEQ"),
    "mdeq-cifar10-jr-gpu": next(r.accuracy for r in IMAGES if r.model == "MDEQ, regularised"),
    "mdeq-cifar10-tiny-paper": next(r.accuracy for r in CIFAR if r.model == "MDEQ-small"),
    "mdeq-cifar10-large-paper": next(r.accuracy for r in CIFAR if r.model == "MDEQ"),
    "mdeq-cifar10-large-jr-paper": next(
        r.accuracy for r in IMAGES if r.model == "MDEQ, regularised"
    ),
    "mdeq-imagenet-small-paper": next(r.top1 for r in IMAGENET if r.model == "MDEQ-small"),
    "mdeq-imagenet-large-paper": next(r.top1 for r in IMAGENET if r.model == "MDEQ-large"),
    "mdeq-imagenet-xl-paper": next(r.top1 for r in IMAGENET if r.model == "MDEQ-XL"),
    "mdeq-imagenet-small-jr-paper": next(
        r.accuracy for r in IMAGES if r.model == "MDEQ-small, regularised"
    ),
    "mdeq-imagenet-large-jr-paper": next(
        r.accuracy for r in IMAGES if r.model == "MDEQ-large, regularised"
    ),
}
"""Accuracy in percent that the papers print of what a recipe describes."""


def show(done: Results) -> Page:
    """Accuracy, time and evaluations of each epoch, and of the test images at the end."""
    rows: list[list[Any]] = []
    series: list[Series] = []
    source = ""
    for key, found in done.items():
        value = found.value
        source = value["source"] or source
        minutes = 0.0
        times: list[float] = []
        for epoch in value["metrics"]:
            minutes += epoch["seconds"] / 60
            times.append(minutes)
            speed = epoch["samples"] / epoch["seconds"]
            rows.append([key, epoch["epoch"], minutes, *_figures(_judged(epoch)), speed, None])
        if value["evaluation"] is not None:
            last = _figures(value["evaluation"])
            rows.append([key, "test", minutes, *last, None, PUBLISHED.get(key)])
        accuracy = [100 * _judged(epoch)["accuracy"] for epoch in value["metrics"]]
        series.append(Series(label=key, x=times, y=accuracy, style="marked"))
    levels = [(f"{key}, published", PUBLISHED[key]) for key in done if key in PUBLISHED]
    return Page(
        [
            Table(
                title="Training on images",
                columns=[
                    *("recipe", "epoch", "minutes", "accuracy, %", "evaluations, mean"),
                    *("converged, %", "images a second", "published, %"),
                ],
                rows=rows,
                note=f"{source}. Accuracy after each epoch on the images that are set aside, or on "
                "the test images where none are, and on the test images at the end; minutes of "
                "training steps alone.",
            )
        ],
        [Panel(title="accuracy", x="minutes", y="%", series=series, levels=levels)],
    )


def _judged(epoch: dict[str, Any]) -> dict[str, Any]:
    """What an epoch is judged by: images set aside where there are any."""
    return epoch["valid"] if "valid" in epoch else epoch["test"]


def _figures(judged: dict[str, Any]) -> list[Any]:
    evals, status = judged["forward"]["evals"], judged["forward"]["status"]
    return [
        100 * judged["accuracy"],
        None if evals is None else evals["mean"],
        None if status is None else 100 * status["CONVERGED"],
    ]


def _said(epoch: dict[str, Any]) -> str:
    return f"accuracy {100 * _judged(epoch)['accuracy']:.2f} %"


def main(argv: Sequence[str] | None = None) -> None:
    """See the module's docstring."""
    call(
        "vision.py",
        argv,
        description=__doc__ or "",
        example="mdeq-cifar10-small-gpu",
        paper="Bai et al. 2020 and 2021",
        show=show,
        said=_said,
    )


if __name__ == "__main__":
    main()
