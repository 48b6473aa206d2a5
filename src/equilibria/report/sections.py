"""The plots in their order, each with what to look for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from equilibria.metric import LOSS, Metric
from equilibria.report import plots, reading
from equilibria.report.reading import Run, number
from equilibria.report.svg import Drawing
from equilibria.report.words import Table, decimal, figure, mib

__all__ = ["Plate", "Section", "sections"]


@dataclass(frozen=True)
class Plate:
    """A drawing with its text, optionally with the numbers behind it.

    Without a drawing, because nothing was measured, it is left out of the page.
    """

    text: str
    drawing: Drawing | None
    table: Table | None = None


@dataclass(frozen=True)
class Section:
    """Plates on one subject."""

    title: str
    text: str
    plates: Sequence[Plate]


def sections(runs: Sequence[Run]) -> list[Section]:
    """All plots of a page about these runs."""
    primary = list({each.name: each for each in map(reading.primary_of, runs)}.values())
    return [
        Section(
            "Learning",
            "The network is trained like any other: the loss is differentiated through the fixed "
            "point.",
            (
                Plate(
                    "Both curves should fall; where the test curve turns upward, the network "
                    "begins to overfit.",
                    plots.learning_curve(runs, LOSS),
                ),
                *(
                    Plate(
                        metric.description or f"The {metric.better}, the better.",
                        plots.learning_curve(runs, metric),
                        _epochs(runs, metric),
                    )
                    for metric in reading.metrics_of(runs)
                    if metric.plot and metric.name != LOSS.name
                ),
            ),
        ),
        Section(
            "Solving",
            "The layer is evaluated repeatedly until another evaluation changes nothing. How many "
            "evaluations that takes is decided for each sample individually.",
            (
                Plate(
                    "A straight line downward is a healthy solve: each evaluation reduces the "
                    "residual by the same factor. Samples that have reached the tolerance stop and "
                    "keep their residual.",
                    plots.residual(runs),
                ),
                *(
                    Plate(
                        "The answer is read out before the solve has finished. A curve that "
                        f"{'rises' if metric.higher_is_better else 'falls'} shows that the network "
                        "uses its depth; where it levels off, cheaper answers are just as good.",
                        plots.read_early(runs, metric),
                        _points(runs, metric, "evaluations", reading.early_points),
                    )
                    for metric in primary
                ),
                *(
                    Plate(
                        "All solves are stopped early, including those of what the network carries "
                        "over from segment to segment. Where the curve levels off, cheaper solves "
                        "are just as good.",
                        plots.under_budgets(runs, metric),
                        _points(runs, metric, "maximum evaluations", reading.budget_points),
                    )
                    for metric in primary
                ),
                Plate(
                    "The cost of training. Lines that climb from epoch to epoch are the usual "
                    "first sign of an unstable layer.",
                    plots.evaluations(runs),
                ),
            ),
        ),
        Section(
            "Stability",
            "A fixed point can only be trusted if the solver reached it. Solves that did not are "
            "counted here and never hidden.",
            (
                Plate(
                    "How strongly the layer amplifies a small change of its state under repeated "
                    "evaluation. Below 1 the fixed point is attracting; the closer to 1, the "
                    "slower the convergence.",
                    plots.spectral_radius(runs),
                ),
                Plate(
                    "The cost of a large Jacobian in training, to be compared with the loss. It is "
                    "the mean square of the Jacobian's singular values at the solutions.",
                    plots.penalty(runs),
                ),
                Plate(
                    "The share of samples by the status of their solve, epoch by epoch. A forward "
                    "solve that ends early gives an answer that is not the fixed point; a backward "
                    "solve that ends early gives an inexact gradient.",
                    plots.status(runs),
                ),
            ),
        ),
        Section(
            "Memory",
            "Training a deep network stores what every layer computed. An equilibrium layer is "
            "differentiated at its solution alone and stores one evaluation, however many it took.",
            (
                Plate(
                    "Measured, not computed: the peak number of bytes allocated in forward and "
                    "backward, minus parameters, gradients and optimiser state. The solver keeps a "
                    "few earlier states, its history, which is the shaded part. For a language "
                    "model the body is measured, without embedding and softmax.",
                    plots.memory(runs),
                    _memory(runs),
                ),
            ),
        ),
    ]


def _epochs(runs: Sequence[Run], metric: Metric) -> Table | None:
    if len(runs) > 1:
        return None
    held = reading.held_name(runs)
    rows = [
        [
            f"{number(row, 'epoch'):.0f}",
            decimal(number(row, "train", "loss"), 4),
            decimal(number(row, "held", "loss"), 4),
            figure(metric, number(row, "train", metric.name)),
            figure(metric, number(row, "held", metric.name)),
            decimal(number(row, "train", "forward", "evals", "mean")),
            decimal(number(row, "train", "adjoint", "evals", "mean")),
            decimal(number(row, "spectral_radius", "mean"), 3),
        ]
        for row in runs[0]["metrics"]
    ]
    name = metric.label
    head = ["epoch", "loss, train", f"loss, {held}", f"{name}, train", f"{name}, {held}"]
    return Table([*head, "evaluations", "backward products", "spectral radius"], rows)


def _points(
    runs: Sequence[Run],
    metric: Metric,
    head: str,
    points_of: Callable[[Run, Metric], Mapping[float, float]],
) -> Table:
    found = [(run["name"], points_of(run, metric)) for run in runs]
    places = sorted({evals for _, points in found for evals in points})
    rows = [
        [f"{evals:g}", *(figure(metric, points.get(evals, math.nan)) for _, points in found)]
        for evals in places
    ]
    names = [metric.label] if len(runs) == 1 else [name for name, _ in found]
    return Table([head, *names], rows)


def _memory(runs: Sequence[Run]) -> Table:
    rows: list[list[str]] = []
    for run in runs:
        found = {(point["kind"], point["evals"]): point for point in run.get("memory") or []}
        for evals in sorted({evals for _, evals in found}):
            sizes = [number(found, (kind, evals), field) for kind, field in _MEMORY_COLUMNS]
            rows.append([*([run["name"]] if len(runs) > 1 else []), f"{evals}", *map(mib, sizes)])
    head = ["evaluations", "DEQ", "its solver's history", "unrolled", "checkpointed", "explicit"]
    return Table([*(["run"] if len(runs) > 1 else []), *head], rows)


_MEMORY_COLUMNS = (
    ("deq", "bytes"),
    ("deq", "history_bytes"),
    ("unrolled", "bytes"),
    ("checkpointed", "bytes"),
    ("explicit", "bytes"),
)
