"""The plots in their order, each with what to look for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from equilibria.report import depth, plots
from equilibria.report.canvas import Drawing
from equilibria.report.plots import Run, number
from equilibria.report.words import Table, decimal, mib, percent

__all__ = ["Plate", "Section", "sections"]


@dataclass(frozen=True)
class Plate:
    """A drawing with its title and text, perhaps with the numbers behind it.

    Without a drawing, where nothing was measured, it is left out of the page.
    """

    title: str
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
    return [
        Section(
            "Learning",
            "The network is trained as any other: the loss on the answer goes backward through the "
            "fixed point.",
            (
                Plate(
                    "Loss",
                    "Both curves should fall; where the test curve turns upward, the network "
                    "begins to learn its training data by heart.",
                    plots.learning_curve(runs, "loss"),
                ),
                Plate(
                    "Accuracy",
                    "The gap between the curves is what is learnt and does not carry over.",
                    plots.learning_curve(runs, "accuracy"),
                    _epochs(runs, "accuracy"),
                ),
                Plate(
                    "Perplexity",
                    "Among how many equally likely tokens the network hesitates, in the mean: "
                    "e to the loss. A perplexity of 1 would be certainty.",
                    plots.learning_curve(runs, "perplexity"),
                    _epochs(runs, "perplexity"),
                ),
            ),
        ),
        Section(
            "Solving",
            "The layer is evaluated again and again until evaluating it once more changes nothing. "
            "How often that takes is decided for each sample by itself.",
            (
                Plate(
                    "How the residual falls",
                    "A straight line downward is a healthy solve: each evaluation removes the same "
                    "share of what is left. Samples that have reached the tolerance stop and keep "
                    "their residual.",
                    plots.residual(runs),
                ),
                Plate(
                    "What depth buys",
                    "The answer is read off before the solve has finished. A curve that rises "
                    "shows that the network uses its depth; where it levels off, cheaper answers "
                    "are just as good.",
                    depth.accuracy_against_evaluations(runs),
                    _depths(runs),
                ),
                Plate(
                    "What evaluations buy",
                    "All solves are stopped early, and what the network carries over from segment "
                    "to segment is found that way too. Where the curve levels off, a cheaper "
                    "reading is just as good.",
                    depth.perplexity_against_evaluations(runs),
                    _budgets(runs),
                ),
                Plate(
                    "Evaluations in each epoch",
                    "The cost of training. Lines that climb from epoch to epoch are the usual "
                    "first sign of an unstable layer. "
                    + ("Shaded: what 99 % of the samples need." if len(runs) == 1 else ""),
                    plots.evaluations(runs),
                ),
            ),
        ),
        Section(
            "Stability",
            "A fixed point can only be trusted where the solver reached it. A solve that did not "
            "is counted here and never hidden.",
            (
                Plate(
                    "Spectral radius",
                    "How strongly the layer feeds a small change of its state back to itself, in "
                    "the long run. Below 1 the fixed point attracts; the closer to 1, the slower.",
                    plots.spectral_radius(runs),
                ),
                Plate(
                    "Jacobian penalty",
                    "What training pays for a strong Jacobian, to be compared with the loss. It is "
                    "the mean square of the Jacobian's singular values at the solutions.",
                    plots.penalty(runs),
                ),
                Plate(
                    "How solves end",
                    "The share of samples by the status of their solve, epoch by epoch. A forward "
                    "solve that ends early leaves an answer that is not the fixed point; a "
                    "backward solve that ends early leaves a gradient that is inexact.",
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
                    "Memory of one training step against depth",
                    "Measured, not computed: the largest number of bytes allocated in forward and "
                    "backward, less parameters, gradients and optimiser state. The solver keeps a "
                    "few earlier states, its history; that is the part shaded. Of a language model "
                    "the body is measured, without embedding and softmax.",
                    plots.memory(runs),
                    _memory(runs),
                ),
            ),
        ),
    ]


def _epochs(runs: Sequence[Run], metric: str) -> Table | None:
    if len(runs) > 1:
        return None
    text = percent if metric == "accuracy" else decimal
    held = plots.held_name(runs)
    rows = [
        [
            f"{number(row, 'epoch'):.0f}",
            decimal(number(row, "train", "loss"), 4),
            decimal(number(row, "held", "loss"), 4),
            text(number(row, "train", metric), 2),
            text(number(row, "held", metric), 2),
            decimal(number(row, "train", "forward", "evals", "mean")),
            decimal(number(row, "train", "adjoint", "evals", "mean")),
            decimal(number(row, "spectral_radius", "mean"), 3),
        ]
        for row in runs[0]["metrics"]
    ]
    head = ["epoch", "loss, train", f"loss, {held}", f"{metric}, train", f"{metric}, {held}"]
    return Table([*head, "evaluations", "backward products", "spectral radius"], rows)


def _depths(runs: Sequence[Run]) -> Table | None:
    found = [(run["name"], depth.accuracy_points(run)) for run in runs]
    depths = sorted({evals for _, points in found for evals in points})
    rows = [
        [f"{evals:g}", *(percent(points.get(evals, math.nan), 2) for _, points in found)]
        for evals in depths
    ]
    head = ["accuracy"] if len(runs) == 1 else [name for name, _ in found]
    return Table(["evaluations", *head], rows)


def _budgets(runs: Sequence[Run]) -> Table | None:
    found = [(run["name"], depth.perplexity_points(run)) for run in runs]
    limits = sorted({limit for _, points in found for limit in points})
    rows = [
        [f"{limit:g}", *(decimal(points.get(limit, math.nan), 2) for _, points in found)]
        for limit in limits
    ]
    head = ["perplexity"] if len(runs) == 1 else [name for name, _ in found]
    return Table(["evaluations at most", *head], rows)


def _memory(runs: Sequence[Run]) -> Table | None:
    rows = [
        [
            *([run["name"]] if len(runs) > 1 else []),
            f"{evals}",
            *(mib(_bytes(run, kind, evals, field)) for kind, field in _MEMORY_COLUMNS),
        ]
        for run in runs
        for evals in sorted({point["evals"] for point in run.get("memory") or []})
    ]
    head = ["evaluations", "DEQ", "its solver's history", "unrolled", "checkpointed", "explicit"]
    return Table([*(["run"] if len(runs) > 1 else []), *head], rows)


_MEMORY_COLUMNS = (
    ("deq", "bytes"),
    ("deq", "history_bytes"),
    ("unrolled", "bytes"),
    ("checkpointed", "bytes"),
    ("explicit", "bytes"),
)


def _bytes(run: Run, kind: str, depth: int, field: str) -> float:
    points = [p for p in run.get("memory") or [] if p["kind"] == kind and p["evals"] == depth]
    return float(points[0][field]) if points else math.nan
