"""Table 3.1 and Figure 3.5: the multiscale network beside others of its size."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from equilibria.bench.record import Table
from equilibria.experiments.case import Case, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.mdeq.networks import (
    DATA,
    LOOSE,
    NETWORKS,
    SEEDS,
    key,
    training_of,
)
from equilibria.experiments.published import BAI_2022, CIFAR, SIZES
from equilibria.models.vision.mdeq import MDEQConfig
from equilibria.train import recipe as recipes

__all__ = ["EXPERIMENT", "cases", "order", "show", "sizes"]

MIB = 2**20
OURS, PAPER = "ours", "thesis"
DIVERGED = "diverged"


def cases(scale: Scale) -> Sequence[Case]:
    """All trainings, seed by seed, so that an early stop leaves whole rows of few seeds."""
    return [
        training_of(data, kind, scale, seed) for seed in SEEDS for data in DATA for kind in NETWORKS
    ]


def show(done: Results) -> Page:
    """The table, ours below the thesis's; the order; every training; sizes; curves and bars."""
    found = {(data, kind): _summary(done, data, kind) for data in DATA for kind in NETWORKS}
    tables = [table(found), order(found), trainings_of(done), sizes()]
    curves = [_curves(done, data) for data in DATA]
    bars = [
        _bars(found, "time of all training steps", "minutes", "minutes"),
        _bars(found, "memory of a training step", "MiB", "memory"),
    ]
    return Page(tables, [*curves, *bars])


@dataclass(frozen=True)
class Summary:
    """What the seeds of a network have in common; None where no training is done.

    Attributes:
        runs: trainings that are done.
        diverged: of these, whose loss ran away.
        parameters: of the network.
        source: what the data are.
        accuracies: on the test images in percent, a figure a training that has not diverged.
        minutes: of all steps, median over the trainings.
        memory: MiB of a training step, the most at any depth.
        epochs: of the training.
    """

    runs: int
    diverged: int
    parameters: int | None
    source: str
    accuracies: Sequence[float]
    minutes: float | None
    memory: float | None
    epochs: int | None

    @property
    def mean(self) -> float | None:
        """Mean accuracy."""
        return statistics.mean(self.accuracies) if self.accuracies else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the accuracies, of at least two."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    def accuracy(self) -> str:
        """Mean and deviation in words, "not run" or "diverged" where there is none."""
        if self.mean is None:
            return DIVERGED if self.diverged else NOT_RUN
        whole = f"{self.mean:.1f}"
        return whole if self.deviation is None else f"{whole} ± {self.deviation:.1f}"


def _summary(done: Results, data: str, kind: str) -> Summary:
    values = [done[key(data, kind, seed)].value for seed in SEEDS if key(data, kind, seed) in done]
    sound = [value for value in values if not value["diverged"]]
    memories = [each for value in sound if (each := step_mib(value)) is not None]
    return Summary(
        runs=len(values),
        diverged=len(values) - len(sound),
        parameters=values[0]["parameters"] if values else None,
        source=(values[0].get("source") if values else None) or DATA[data].words,
        accuracies=[100 * value["evaluation"]["accuracy"] for value in sound],
        minutes=statistics.median(v["seconds"] / 60 for v in values) if values else None,
        memory=max(memories, default=None),
        epochs=len(values[0]["metrics"]) if values else None,
    )


def step_mib(value: Mapping[str, Any]) -> float | None:
    """MiB of a step as the network trains; of an equilibrium network at its dearest depth."""
    points = [p["bytes"] for p in value["memory"] or () if p["kind"] in ("deq", "explicit")]
    return max(points) / MIB if points else None


def table(found: Mapping[tuple[str, str], Summary]) -> Table:
    """Table 3.1 with ours below it, on each set of images."""
    rows: list[list[Any]] = []
    for row in CIFAR:
        data = "CIFAR-10, augmented" if row.augmented else "CIFAR-10"
        accuracy = f"{row.accuracy:.1f} ± {row.deviation:.1f}"
        rows.append([data, row.model, PAPER, row.size, accuracy, "5", *[None] * 3])
    for (_, kind), each in found.items():
        rows.append(
            [
                each.source,
                NETWORKS[kind].words,
                OURS,
                each.parameters,
                each.accuracy(),
                f"{len(each.accuracies)} of {len(SEEDS)}",
                each.epochs,
                each.minutes,
                each.memory,
            ]
        )
    return Table(
        title="Table 3.1: classification of images by networks of one size",
        columns=[
            *("images", "network", "whose", "parameters", "test accuracy, %"),
            *("seeds", "epochs", "minutes", "memory of a step, MiB"),
        ],
        rows=rows,
        note="Mean ± standard deviation over the seeds. Ours: the recipe's images, resized and as "
        "many as it says, without augmentation; all networks with the same data in the same order, "
        "optimiser but for its rate, schedule, batches and epochs, each of the width whose number "
        "of parameters is the nearest to the multiscale network's. Learning rates: the multiscale "
        "network's and the ResNet's, which is "
        f"{NETWORKS['resnet'].rate:g} of it, were found with a few throwaway trainings of seed 0 "
        "each at CPU scale (.003 to .005 and .003, .005); the others have the multiscale "
        "network's, and for the ODEs none was sought. The ODEs are integrated to tolerances of "
        f"{LOOSE:g}. Minutes: all training steps of a seed, median. "
        "Memory: of an equilibrium network the most at any measured depth, with the solver's "
        "history.",
    )


def order(found: Mapping[tuple[str, str], Summary]) -> Table:
    """From the best to the worst: the thesis's order, and ours."""
    plain = sorted((row for row in CIFAR if not row.augmented), key=lambda row: -row.accuracy)
    rows: list[list[Any]] = [[PAPER, "CIFAR-10", " > ".join(row.model for row in plain), None]]
    for data, images in DATA.items():
        mine = {kind: each for (name, kind), each in found.items() if name == data}
        known = {kind: each.mean for kind, each in mine.items() if each.mean is not None}
        if len(known) < len(mine):
            lacking = [NETWORKS[kind].words for kind in mine if kind not in known]
            rows.append([OURS, images.words, NOT_RUN, f"without {', '.join(lacking)}"])
            continue
        ranked = sorted(known, key=lambda kind: -known[kind])
        said = " > ".join(NETWORKS[kind].words for kind in ranked)
        lead = known["mdeq"] - max(mean for kind, mean in known.items() if kind != "mdeq")
        rows.append([OURS, mine["mdeq"].source, said, f"{lead:+.1f}"])
    return Table(
        title="The order of the networks by mean test accuracy",
        columns=["whose", "images", "order", "MDEQ less the best other, points"],
        rows=rows,
        note="An order is that of the means; the deviations above tell which steps of it the seeds "
        "bear out.",
    )


def trainings_of(done: Results) -> Table:
    """One row a training."""
    rows: list[list[Any]] = []
    for data, images in DATA.items():
        for kind, network in NETWORKS.items():
            for seed in SEEDS:
                found = done.get(key(data, kind, seed))
                if found is None:
                    rows.append([images.words, network.words, seed, NOT_RUN, *[None] * 4])
                    continue
                value = found.value
                evaluation: dict[str, Any] = value["evaluation"] or {}
                forward: dict[str, Any] = evaluation.get("forward", {})
                evals, status = forward.get("evals"), forward.get("status")
                rows.append(
                    [
                        value.get("source") or images.words,
                        network.words,
                        seed,
                        100 * evaluation["accuracy"] if evaluation else DIVERGED,
                        None if evals is None else evals["mean"],
                        None if status is None else 100 * status["CONVERGED"],
                        value["seconds"] / 60,
                        f"{found.record['threads']} threads, {found.record['machine']}",
                    ]
                )
    return Table(
        title="Every training",
        columns=[
            *("images", "network", "seed", "test accuracy, %", "evaluations, mean"),
            *("converged, %", "minutes", "on"),
        ],
        rows=rows,
        note="Evaluations and converged: solves of the test images, to the recipe's tolerance and "
        "limit.",
    )


def sizes() -> Table:
    """Parameters of the released models, counted without making room for them."""
    rows: list[list[Any]] = []
    for name, published in SIZES.items():
        recipe = recipes.load(name)
        model = cast(MDEQConfig, recipe.model)
        shape, classes = ((3, 224, 224), 1000) if "imagenet" in name else ((3, 32, 32), 10)
        with torch.device("meta"):
            network = replace(model, shape=shape, classes=classes).build(**recipe.layer())
        count = sum(parameter.numel() for parameter in network.parameters())
        rows.append([name, str(model.channels), published, f"{count / 1e6:.2f}M", count])
    return Table(
        title="Sizes of the released models",
        columns=["recipe", "channels", "published", "ours", "parameters"],
        rows=rows,
        note="Channels of each resolution as in the authors' configurations, with the classifier. "
        "The published sizes are those of Tables 3.1 and 3.2, which these channels do not give.",
    )


def _curves(done: Results, data: str) -> Panel:
    """Accuracy after each epoch on what the training is judged by, mean over the seeds."""
    series: list[Series] = []
    judged = "test"
    for place, (kind, network) in enumerate(NETWORKS.items()):
        runs = [done[k].value for seed in SEEDS if (k := key(data, kind, seed)) in done]
        lines: list[list[float]] = []
        for value in runs:
            judged = "valid" if value["metrics"] and "valid" in value["metrics"][0] else "test"
            lines.append([100 * epoch[judged]["accuracy"] for epoch in value["metrics"]])
        shared = min(map(len, lines), default=0)
        columns = [[line[epoch] for line in lines] for epoch in range(shared)]
        series.append(
            Series(
                label=network.words,
                x=list(range(1, shared + 1)),
                y=[statistics.mean(column) for column in columns],
                low=[min(column) for column in columns],
                high=[max(column) for column in columns],
                colour=place,
            )
        )
    what = "images set aside" if judged == "valid" else "test images"
    return Panel(
        title=f"{DATA[data].words}, {what}: mean and range",
        x="epoch",
        y="accuracy, %",
        series=series,
        whole_x=True,
    )


def _bars(found: Mapping[tuple[str, str], Summary], title: str, unit: str, figure: str) -> Panel:
    """A bar a network for each set of images."""
    names = [re.sub("(-| )", r"\1\n", network.words) for network in NETWORKS.values()]
    return Panel(
        title=title,
        x="",
        y=unit,
        series=[
            Series(
                label=images.words,
                x=list(range(len(names))),
                y=[getattr(found[data, kind], figure) for kind in NETWORKS],
                style="bars",
            )
            for data, images in DATA.items()
        ],
        names=names,
        zero=True,
    )


EXPERIMENT = Experiment(
    name="mdeq/tables",
    paper=BAI_2022,
    subject="Table 3.1, Figure 3.5",
    description="MDEQ, single-stream DEQ, ResNet and neural ODEs of one size, on small images.",
    cases=cases,
    show=show,
)
