"""Tables of ours beside those of the thesis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from equilibria.experiments import counterpart
from equilibria.experiments.data import Data, Frame, select
from equilibria.experiments.published import BAI_2022, published
from equilibria.experiments.studies.mdeq._networks import IMAGES, LOOSE, NAMES, RATES
from equilibria.experiments.study import grid
from equilibria.experiments.views import (
    DIVERGED,
    NOT_RUN,
    Table,
    count,
    first,
    largest,
    mean,
    median,
    spread,
)
from equilibria.train import recipe as recipes

__all__ = ["ACCURACY", "MIB", "ORDER", "RELEASED", "source"]

MIB = 2**20


def source(rows: Frame) -> Any:
    """What the images of some trainings are, as they were read."""
    return first("source")(rows) or IMAGES[rows["data"].iloc[0]]


def _groups(data: Data) -> Iterator[tuple[dict[str, str], Frame]]:
    """The seeds of each network on each set of images."""
    return ((each, select(data.points, each)) for each in grid(data=IMAGES, network=NAMES))


def _accuracy(data: Data) -> Iterable[list[Any]]:
    for row in published(BAI_2022, "Table 3.1"):
        images = "CIFAR-10, augmented" if row["augmented"] == "True" else "CIFAR-10"
        accuracy = f"{row['accuracy']:.1f} ± {row['deviation']:.1f}"
        yield [images, row["model"], "thesis", row["size"], accuracy, 5]
    figures = (count("accuracy"), first("last_epoch"), median("seconds", 1 / 60))
    for each, rows in _groups(data):
        without = DIVERGED if rows["done"].any() else NOT_RUN
        yield [
            *(source(rows), NAMES[each["network"]], "ours", first("parameters")(rows)),
            spread("accuracy", 100)(rows) or without,
            *(figure(rows) for figure in (*figures, largest("step_bytes", 1 / MIB))),
        ]


ACCURACY = Table(
    title="Table 3.1: image classification by networks of one size",
    columns=[
        *("images", "network", "whose", "parameters", "test accuracy, %", "seeds"),
        *("epochs", "minutes", "memory of a step, MiB"),
    ],
    rows=_accuracy,
    note="Mean ± standard deviation over the seeds. Ours: images resized and as many as the recipe "
    "says, without augmentation. All networks see the same data in the same order, with the same "
    "schedule, batch size, epochs and, except for its learning rate, optimiser; each has the width "
    "whose number of parameters is nearest to the multiscale network's. Learning rates: those of "
    f"the multiscale network and of the ResNet, {RATES['resnet']:g} of it, were chosen in a few "
    "short trainings with seed 0 at CPU scale (among 0.003 to 0.005, and 0.003 and 0.005); the "
    "others use the multiscale network's, which was not tuned for the ODEs. These are integrated "
    f"to tolerances of {LOOSE:g}. Minutes: all training steps of a seed, median. Memory: maximum "
    "over the seeds and, of an equilibrium network, over the measured depths, with the solver's "
    "history.",
)


def _order(data: Data) -> Iterable[list[Any]]:
    rows = [row for row in published(BAI_2022, "Table 3.1") if row["augmented"] == "False"]
    best = sorted(rows, key=lambda row: -row["accuracy"])
    yield ["thesis", "CIFAR-10", " > ".join(row["model"] for row in best)]
    for name, words in IMAGES.items():
        groups = {each["network"]: rows for each, rows in _groups(data) if each["data"] == name}
        means: dict[str, Any] = {key: mean("accuracy", 100)(rows) for key, rows in groups.items()}
        lacking = [NAMES[key] for key, value in means.items() if value is None]
        if lacking:
            yield ["ours", words, NOT_RUN, f"without {', '.join(lacking)}"]
            continue
        said = " > ".join(NAMES[key] for key in sorted(means, key=lambda key: -means[key]))
        lead = means.pop("mdeq") - max(means.values())
        yield ["ours", source(groups["mdeq"]), said, f"{lead:+.1f}"]


ORDER = Table(
    title="The order of the networks by mean test accuracy",
    columns=["whose", "images", "order", "MDEQ minus the best other, points"],
    rows=_order,
    note="The deviations above tell which steps of the order the seeds support.",
)


def _released(_: Data) -> Iterable[list[Any]]:
    for row in published(BAI_2022, "released models"):
        model: Any = recipes.load(row["row"]).model
        shape, classes = ((3, 224, 224), 1000) if "imagenet" in row["row"] else ((3, 32, 32), 10)
        size = counterpart.parameters(replace(model, shape=shape, classes=classes))
        yield [row["row"], str(model.channels), row["size"], f"{size / 1e6:.2f}M", size]


RELEASED = Table(
    title="Sizes of the released models",
    columns=["recipe", "channels", "published", "ours", "parameters"],
    rows=_released,
    note="Channels of each resolution as in the authors' configurations, with the classifier. The "
    "published sizes are those of Tables 3.1 and 3.2, which these channels do not give.",
)
