"""The plots in their order, each with what to look for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from equilibria.metric import LOSS, Metric
from equilibria.run.report import depth, gradients, plots, reading
from equilibria.run.report.reading import Run, number
from equilibria.run.report.svg import Drawing, inline
from equilibria.run.report.words import TextTable, decimal, figure, keep_known, mib
from equilibria.words import plural


@dataclass(frozen=True)
class Plate:
    """A drawing with its text, optionally with the numbers behind it.

    Without a drawing, because nothing was measured, it is left out of the page.
    """

    text: str
    drawing: Drawing | None
    table: TextTable | None = None


@dataclass(frozen=True)
class Section:
    """Plates on one subject."""

    title: str
    text: str
    plates: Sequence[Plate]


def sections(runs: Sequence[Run]) -> list[Section]:
    """All plots of a page about these runs."""
    return [
        _build_learning(runs),
        _build_solving(runs),
        *_build_depth(runs),
        _build_stability(runs),
        *_build_gradients(runs),
        _build_memory(runs),
    ]


def _build_learning(runs: Sequence[Run]) -> Section:
    """Loss and figures of each epoch."""
    several, held = _several(runs), reading.name_held(runs)
    return Section(
        "Learning",
        f"Loss and figures on the training data and on {held} data, which are never trained on.",
        (
            Plate(
                f"Both curves should fall; where the {held} curve turns upward, the network "
                "begins to overfit."
                if several
                else "After one epoch there is one value each.",
                plots.learning_curve(runs, reading.loss_of(runs)),
            ),
            *(
                Plate(
                    (several and metric.description) or f"The {metric.better}, the better.",
                    plots.learning_curve(runs, metric),
                    _epochs(runs, metric),
                )
                for metric in reading.metrics_of(runs)
                if metric.plot and metric.name != LOSS.name
            ),
        ),
    )


def _build_solving(runs: Sequence[Run]) -> Section:
    """The solves: their course, their cost, and what fewer evaluations would give."""
    primary = list({each.name: each for each in map(reading.primary_of, runs)}.values())
    return Section(
        "Solving",
        "The layer is evaluated repeatedly until another evaluation changes its state by less "
        "than the tolerance, or until the solver gives up. How many evaluations that takes is "
        "decided for each sample individually.",
        (
            Plate(
                "A straight line downward is a healthy solve: each evaluation reduces the "
                "residual by the same factor. Samples that have reached the tolerance stop and "
                "keep their residual.",
                plots.residual(runs),
            ),
            *(
                Plate(
                    "The answer is read out before the solve has ended. If the curve "
                    f"{'rises' if metric.higher_is_better else 'falls'}, the network uses its "
                    "depth; where it levels off, cheaper answers are just as good.",
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
                "The cost of training."
                + " Lines that climb from epoch to epoch are the usual first sign of an "
                "unstable layer." * _several(runs),
                plots.evaluations(runs),
            ),
        ),
    )


def _build_depth(runs: Sequence[Run]) -> list[Section]:
    """What the answers owe to the evaluations of their solves, of a single run."""
    found = runs[0].get("depth") if len(runs) == 1 else None
    if not found or not found["splits"]:
        return []
    metric, splits = Metric.of(found["metric"]), found["splits"]
    panels = depth.panels(splits, metric)
    by = f"Solved by {found['solver']}. " if "solver" in found else ""
    if "max_evals" in found:
        by += f"A solve took at most {plural(found['max_evals'], 'evaluation')}. "
    said = "; ".join(f"{each['split']}: {each['sentence']}" for each in splits)
    return [
        Section(
            "Use of depth",
            f"Is the equilibrium needed, or would a few evaluations do? {by}On {said}.",
            [
                Plate(
                    depth.NOTES[panel.title],
                    inline(panel),
                    depth.solves(splits, metric) if panel.title == depth.EARLY else None,
                )
                for panel in panels
            ],
        )
    ]


def _build_stability(runs: Sequence[Run]) -> Section:
    """Whether solves end at a fixed point, and how strongly it attracts."""
    return Section(
        "Stability",
        "A fixed point can only be trusted if the solver reached it. Solves that did not are "
        "counted here and never hidden.",
        (
            Plate(
                "How strongly the layer amplifies a small change of its state under repeated "
                "evaluation. Below 1 a fixed point attracts; the closer to 1, the slower plain "
                "iteration converges.",
                plots.spectral_radius(runs),
            ),
            Plate(
                "The cost of a large Jacobian in training, to be compared with the loss. It is "
                "the mean square of the Jacobian's singular values where solves end.",
                plots.penalty(runs),
            ),
            Plate(
                "The share of samples by the status of their solve, in each epoch. A forward "
                "solve that does not converge gives an answer that is not a fixed point; a "
                "backward solve that does not converge gives an inexact gradient.",
                plots.status(runs),
            ),
        ),
    )


def _build_gradients(runs: Sequence[Run]) -> list[Section]:
    """How the adjoints compare, of a single run."""
    found = runs[0].get("gradients") if len(runs) == 1 else None
    if not found:
        return []
    time, memory = (inline(panel) for panel in gradients.panels(found))
    return [
        Section(
            "Gradients",
            "Every adjoint on one batch, compared with the exact gradient in float64: the higher "
            f"and the further left, the better. {found['sentence']}.",
            (
                Plate("What an adjoint costs in time, the solve included.", time),
                Plate(
                    "What it costs in memory. In the table, length is relative to the exact "
                    "gradient, and cost counts evaluations and products besides the solve.",
                    memory,
                    gradients.table(found),
                ),
            ),
        )
    ]


def _build_memory(runs: Sequence[Run]) -> Section:
    """Memory of a training step against depth."""
    solving = any(map(reading.solves, runs))
    kept = any("kept_bytes" in point for run in runs for point in reading.memory_of(run))
    return Section(
        "Memory",
        "Training a deep network stores what every layer computed."
        + " An equilibrium layer with an implicit gradient is differentiated where its solve "
        "ended and stores one evaluation, however many that took." * solving,
        (
            Plate(
                "Measured, not computed: the peak number of bytes allocated in forward and "
                "backward, minus parameters, gradients and optimiser state."
                + " Of the equilibrium layer, the states that training keeps from step to step "
                "are added."
                * kept
                + " The solver keeps a few earlier states, its history, which is the shaded "
                "part."
                * (solving and len(runs) == 1)
                + " For a language model the body is measured, without embedding and softmax.",
                plots.memory(runs),
                _memory_table(runs),
            ),
        ),
    )


def _several(runs: Sequence[Run]) -> bool:
    """Whether any run has several epochs: one is a point, and nothing rises or falls yet."""
    return any(
        sum(math.isfinite(number(row, "train", "loss")) for row in run["metrics"]) > 1
        for run in runs
    )


def _epochs(runs: Sequence[Run], metric: Metric) -> TextTable | None:
    """The figures of each epoch of a single run; columns without any are left out."""
    if len(runs) > 1:
        return None
    held = reading.name_held(runs)
    name, loss = metric.label, reading.loss_of(runs).label
    columns: list[tuple[str, Callable[[reading.Row], str]]] = [
        ("epoch", lambda row: f"{number(row, 'epoch'):.0f}"),
        (f"{loss}, train", lambda row: decimal(number(row, "train", "loss"), 4)),
        (f"{loss}, {held}", lambda row: decimal(number(row, "held", "loss"), 4)),
        (f"{name}, train", lambda row: figure(metric, number(row, "train", metric.name))),
        (f"{name}, {held}", lambda row: figure(metric, number(row, "held", metric.name))),
        ("evaluations", lambda row: decimal(number(row, "train", "forward", "evals", "mean"))),
        (
            "backward products",
            lambda row: decimal(number(row, "train", "adjoint", "evals", "mean")),
        ),
        ("spectral radius", lambda row: decimal(number(row, "spectral_radius", "mean"), 3)),
    ]
    return keep_known(columns, runs[0]["metrics"])


def _points(
    runs: Sequence[Run],
    metric: Metric,
    head: str,
    points_of: Callable[[Run, Metric], Mapping[float, float]],
) -> TextTable:
    found = [(run["name"], points_of(run, metric)) for run in runs]
    places = sorted({evals for _, points in found for evals in points})
    rows = [
        [f"{evals:g}", *(figure(metric, points.get(evals, math.nan)) for _, points in found)]
        for evals in places
    ]
    names = [metric.label] if len(runs) == 1 else [name for name, _ in found]
    return TextTable([head, *names], rows)


def _memory_table(runs: Sequence[Run]) -> TextTable:
    rows = [
        (run["name"], evals, {p["kind"]: p for p in points if p["evals"] == evals})
        for run in runs
        for points in [reading.memory_of(run)]
        for evals in sorted({point["evals"] for point in points})
    ]
    columns: list[tuple[str, Callable[[tuple[str, int, reading.Row]], str]]] = [
        ("evaluations", lambda row: str(row[1])),
        *(
            (head, lambda row, path=path: mib(number(row[2], *path.split("."))))
            for head, path in (
                ("DEQ", "deq.bytes"),
                ("its solver's history", "deq.history_bytes"),
                ("states kept from step to step", "deq.kept_bytes"),
                *((kind, f"{kind}.bytes") for kind in ("unrolled", "checkpointed", "explicit")),
            )
        ),
    ]
    if len(runs) > 1:
        columns.insert(0, ("run", lambda row: row[0]))
    return keep_known(columns, rows)
