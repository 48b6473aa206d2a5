"""Tables 2 and 3 and Figure 6: accuracy, evaluations, time and memory on images."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from equilibria.bench.record import Table
from equilibria.experiments.case import Case, Done, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.jacobian import costs, images
from equilibria.experiments.jacobian.accuracies import (
    CHOSEN,
    DIVERGED,
    EVALUATED,
    LIMIT,
    NAMES,
    OURS,
    PAPER,
    READ_AS,
    THIRD,
    accuracies,
    lacking,
    spread,
)
from equilibria.experiments.jacobian.costs import READERS
from equilibria.experiments.jacobian.criterion import criterion, losses
from equilibria.experiments.jacobian.expenses import (
    errors,
    expenses,
    inference,
    run_times,
    shares,
    step_memory,
)
from equilibria.experiments.mdeq import networks
from equilibria.experiments.published import BAI_2021, IMAGES, STOPPED

__all__ = ["EXPERIMENT", "cases", "show"]


def cases(scale: Scale) -> Sequence[Case]:
    """The trainings, seed by seed, and what is measured of the trained networks."""
    found = [images.resnet(scale)]
    for seed in images.ALL:
        for name in NAMES:
            if seed in images.SEEDS[name]:
                found += [images.case(name, scale, seed), costs.stopped(name, seed)]
    return [*found, *(costs.times(seed) for seed in images.ALL), costs.memories()]


def show(done: Results) -> Page:
    """What is asked of the penalty, the paper's tables with ours below, and its figure."""
    return Page(
        [
            *(criterion(done), losses(done)),
            *(_table_2(done), _table_3(done), expenses(done), inference(done)),
        ],
        [errors(done), step_memory(done), run_times(done), _stops(done), shares(done)],
    )


def _table_2(done: Results) -> Table:
    rows: list[list[Any]] = []
    for row in IMAGES:
        deviation = "" if row.deviation is None else f" ± {row.deviation:.1f}"
        accuracy = f"{row.accuracy:.1f}{deviation}"
        rows.append([row.data, row.model, PAPER, row.size, accuracy, row.evals, None])
    explicit = done.get(images.resnet_key())
    rows.append(_ours_explicit(explicit))
    for reader, (name, limit) in READERS.items():
        training = done.get(images.key(name, images.SEEDS[name][0]))
        found = accuracies(done, name, limit)
        rows.append(
            [
                "CIFAR-10" if training is None else training.value.get("source"),
                READ_AS[reader],
                OURS,
                None if training is None else training.value["parameters"],
                spread(found) or lacking(done, name),
                limit,
                f"{len(found)} of {len(images.SEEDS[name])}",
            ]
        )
    return Table(
        title="Table 2: classification of images",
        columns=[
            *("images", "network", "whose", "size", "test accuracy, %"),
            *("evaluations (ours: at most)", "seeds"),
        ],
        rows=rows,
        note="The paper's deviations are over five runs. Ours: mean ± standard deviation over the "
        "seeds that have not diverged, of a small network, few and small images, few epochs; what "
        f"can be compared is the order of the last three rows. {CHOSEN} The ResNet of that scale "
        "is of the size of the recipe's own network, and its learning rate is "
        f"{networks.NETWORKS['resnet'].rate:g} of the others'.",
    )


def _ours_explicit(found: Done | None) -> list[Any]:
    if found is None:
        return ["CIFAR-10", "ResNet", OURS, None, NOT_RUN, None, "0 of 1"]
    value = found.value
    accuracy = DIVERGED if value["diverged"] else f"{100 * value['evaluation']['accuracy']:.1f}"
    return [value.get("source"), "ResNet", OURS, value["parameters"], accuracy, None, "1 of 1"]


def _table_3(done: Results) -> Table:
    rows: list[list[Any]] = [
        [PAPER, gamma, None, *accuracies, None] for gamma, accuracies in STOPPED.items()
    ]
    for name, gamma in zip(NAMES, (0.0, *images.GAMMAS), strict=True):
        found = [accuracies(done, name, limit) for limit in costs.LIMITS]
        seeds = f"{len(found[0])} of {len(images.SEEDS[name])}"
        means = [statistics.fmean(each) if each else lacking(done, name) for each in found]
        rows.append([OURS, gamma, seeds, *means])
    return Table(
        title="Table 3: accuracy in percent, solves stopped early",
        columns=["whose", "gamma", "seeds", *(f"NFE = {limit}" for limit in costs.LIMITS)],
        rows=rows,
        note="Means over the seeds that have not diverged. Ours with a penalty were trained with "
        f"{THIRD} evaluations a solve, the one without (gamma 0) with {LIMIT}; the penalty is in "
        f"{images.PROBABILITY:g} of the steps (the paper's: .05, 7 evaluations). {EVALUATED}",
    )


def _stops(done: Results) -> Panel:
    """Accuracy against the limit, a line for each gamma, the seeds' range as a band."""
    series: list[Series] = []
    for colour, (name, gamma) in enumerate(zip(NAMES, (0.0, *images.GAMMAS), strict=True)):
        found = {limit: accuracies(done, name, limit) for limit in costs.LIMITS}
        known = {limit: each for limit, each in found.items() if each}
        many = any(len(each) > 1 for each in known.values())
        series.append(
            Series(
                label=f"gamma = {gamma:g}",
                x=list(known),
                y=[statistics.fmean(each) for each in known.values()],
                low=[min(each) for each in known.values()] if many else (),
                high=[max(each) for each in known.values()] if many else (),
                colour=colour,
                style="marked",
            )
        )
    return Panel(
        title="Table 3: accuracy of solves stopped early",
        x="evaluations",
        y="test accuracy, %",
        series=series,
        whole_x=True,
    )


EXPERIMENT = Experiment(
    name="jacobian/tables",
    paper=BAI_2021,
    subject="Tables 2 and 3, Figure 6, Section 3.4",
    description="Accuracy, evaluations, time and memory of an MDEQ with and without the penalty.",
    cases=cases,
    show=show,
)
