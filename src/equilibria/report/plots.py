"""The plots of a report, each a function of plain numbers.

Every function takes runs, a sequence of dictionaries as `page` describes them, and returns a
drawing, or None where no run has measured what it shows. With one run, colours tell its series
apart; with several, a colour is a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

from equilibria.report.canvas import SERIES, Canvas, Dash, Drawing

__all__ = [
    "Sheet",
    "evaluations",
    "learning_curve",
    "memory",
    "number",
    "penalty",
    "pick",
    "residual",
    "spectral_radius",
    "status",
]

Run = Mapping[str, Any]

_STATUS_COLOUR = {
    "CONVERGED": "good",
    "MAX_EVALS": "warn",
    "STALLED": "serious",
    "DIVERGED": "bad",
    "NONFINITE": "ink",
}
_MIB = 2**20


def pick(tree: Any, *path: str) -> Any:
    """The value at a path of keys, None where one is missing."""
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return None
        tree = tree[key]
    return tree


def number(tree: Any, *path: str) -> float:
    """The number at a path of keys, NaN where there is none."""
    value = pick(tree, *path)
    return float(value) if isinstance(value, int | float) else nan


def held_name(runs: Sequence[Run]) -> str:
    """What the data are called that training is judged by."""
    names = dict.fromkeys(str(run.get("judged", "test")) for run in runs)
    return " or ".join("validation" if name == "valid" else name for name in names)


def _series(run: Run, *path: str) -> tuple[list[float], list[float]] | None:
    """Epochs and the values at `path` in each of them; None if no epoch has it."""
    epochs = [number(row, "epoch") for row in run["metrics"]]
    values = [number(row, *path) for row in run["metrics"]]
    return (epochs, values) if any(isfinite(v) for v in values) else None


@dataclass
class Sheet:
    """A canvas, and how series are told apart on it.

    One run: each series has a colour, and the legend names series. Several: a colour is a run, the
    dash tells the series, and the legend names runs and series apart.
    """

    canvas: Canvas
    runs: Sequence[Run]
    drawn: bool = False

    def line(
        self,
        i: int,
        points: tuple[Sequence[float], Sequence[float]] | None,
        series: str | None,
        dash: Dash = "solid",
        colour: str | None = None,
        marks: bool = True,
    ) -> None:
        """The line of a series of run i, where it was measured; `colour` if it is the only run."""
        if points is None:
            return
        self.drawn = True
        colour = SERIES[i % len(SERIES)] if len(self.runs) > 1 or colour is None else colour
        self.canvas.line(*points, colour, dash=dash, marks=marks)
        if len(self.runs) > 1:
            self.canvas.key(self.runs[i]["name"], colour)
        else:
            self.canvas.key(series, colour, dash)

    def finish(self, *series: tuple[str, Dash]) -> Drawing | None:
        """The drawing, None if nothing is on it; `series` explains the dashes of several runs."""
        if not self.drawn:
            return None
        if len(self.runs) > 1:
            for label, dash in series:
                self.canvas.key(label, "muted", dash)
        return self.canvas.finish()


def learning_curve(runs: Sequence[Run], metric: str) -> Drawing | None:
    """A metric of the held-out and the training data against epochs.

    `metric` is loss, accuracy or perplexity.
    """
    share = metric == "accuracy"
    curves = [[_series(run, part, metric) for part in ("held", "train")] for run in runs]
    values = [v for pair in curves for found in pair if found for v in found[1] if isfinite(v)]
    canvas = Canvas(
        f"{metric} of held-out and training data after each epoch",
        "epoch",
        metric,
        percent=share,
        log_y=not share and bool(values) and min(values) > 0,
        whole_x=True,
    )
    sheet = Sheet(canvas, runs)
    name = held_name(runs)
    for i, (held, train) in enumerate(curves):
        sheet.line(i, held, name, "solid", SERIES[0])
        sheet.line(i, train, "training", "dashed", SERIES[1])
    return sheet.finish((name, "solid"), ("training", "dashed"))


def residual(runs: Sequence[Run]) -> Drawing | None:
    """Relative residual of a test batch against evaluations, percentiles over samples."""
    canvas = Canvas(
        "relative residual of a test batch after each evaluation",
        "evaluations of f",
        "relative residual ‖f(z) − z‖ / ‖f(z)‖",
        log_y=True,
        whole_x=True,
        wide=True,
    )
    sheet = Sheet(canvas, runs)
    tolerances: set[float] = set()
    for i, run in enumerate(runs):
        trace = pick(run, "examination", "forward", "trace")
        if not trace:
            continue
        low, middle, high, worst = (_drawable(trace[name]) for name in ("p10", "p50", "p90", "max"))
        if all(math.isnan(value) for value in middle):
            continue
        x = trace["evals"]
        colour = SERIES[i % len(SERIES)]
        label = "10 % to 90 % of samples" if len(runs) == 1 else None
        canvas.band(x, low, high, colour, label)
        sheet.line(i, (x, middle), "median sample", marks=False)
        sheet.line(i, (x, worst), "worst sample", "dotted", marks=False)
        tolerances.add(number(run, "examination", "forward", "rtol"))
    for tolerance in sorted(t for t in tolerances if t > 0):
        canvas.level(tolerance, f"tolerance {tolerance:g}")
    return sheet.finish(("median sample", "solid"), ("worst sample", "dotted"))


def _drawable(values: Sequence[float | None]) -> list[float]:
    """NaN, which is left out, where a logarithmic axis cannot show a value."""
    return [math.nan if v is None or not 1e-30 < v < 1e30 else v for v in values]


def evaluations(runs: Sequence[Run]) -> Drawing | None:
    """Mean evaluations per epoch: of f in the forward, of its transpose in the backward solve."""
    canvas = Canvas(
        "mean evaluations of the forward and the backward solve in each epoch",
        "epoch",
        "evaluations a sample, training",
        whole_x=True,
    )
    sheet = Sheet(canvas, runs)
    for i, run in enumerate(runs):
        solves: tuple[tuple[str, str, Dash, str], ...] = (
            ("forward", "forward", "solid", SERIES[0]),
            ("adjoint", "backward", "dashed", SERIES[1]),
        )
        for solve, label, dash, colour in solves:
            mean = _series(run, "train", solve, "evals", "mean")
            high = _series(run, "train", solve, "evals", "p99")
            if mean and high and len(runs) == 1 and solve == "forward":
                canvas.band(mean[0], mean[1], high[1], colour)
            sheet.line(i, mean, label, dash, colour)
    canvas.limits(low=0)
    return sheet.finish(("forward", "solid"), ("backward", "dashed"))


def status(runs: Sequence[Run]) -> Drawing | None:
    """How the solves of each epoch ended: shares by status, a row for every run and solve."""
    canvas = Canvas(
        "share of each status among the solves of every epoch", "epoch", "", whole_x=True, wide=True
    )
    kinds = (
        ("held", "forward", f"forward, {held_name(runs)}"),
        ("train", "forward", "forward, training"),
        ("train", "adjoint", "backward, training"),
    )
    rows = []
    for run in runs:
        for part, solve, label in kinds:
            shares = {name: _series(run, part, solve, "status", name) for name in _STATUS_COLOUR}
            found = {name: series for name, series in shares.items() if series}
            if not found:
                continue
            row = [
                (name, _STATUS_COLOUR[name], values)
                for name, (_, values) in found.items()
                if name == "CONVERGED" or any(value > 0 for value in values)
            ]
            epochs = next(iter(found.values()))[0]
            rows.append((label if len(runs) == 1 else f"{run['name']}: {label}", epochs, row))
    if not rows:
        return None
    canvas.shares(rows)
    return canvas.finish()


def spectral_radius(runs: Sequence[Run]) -> Drawing | None:
    """Spectral radius of J = df/dz at z* on held-out samples, mean and largest, per epoch."""
    canvas = Canvas(
        "spectral radius of the Jacobian at the solution after each epoch",
        "epoch",
        "spectral radius of J at z*",
        whole_x=True,
        wide=True,
    )
    sheet = Sheet(canvas, runs)
    for i, run in enumerate(runs):
        sheet.line(i, _series(run, "spectral_radius", "mean"), "mean over samples")
        sheet.line(i, _series(run, "spectral_radius", "max"), "largest sample", "dotted")
    canvas.level(1.0, "plain iteration no longer converges")
    canvas.limits(low=0)
    return sheet.finish(("mean over samples", "solid"), ("largest sample", "dotted"))


def penalty(runs: Sequence[Run]) -> Drawing | None:
    """The Jacobian penalty per epoch, before and after it is weighed with gamma."""
    canvas = Canvas(
        "Jacobian penalty of the steps of each epoch that had it",
        "epoch",
        "‖J‖² / entries",
        log_y=True,
        whole_x=True,
        wide=True,
    )
    sheet = Sheet(canvas, runs)
    for i, run in enumerate(runs):
        found = _series(run, "regulariser", "penalty")
        if found is None:
            continue
        gammas = [number(row, "regulariser", "gamma") for row in run["metrics"]]
        epochs, plain = found[0], _drawable(found[1])
        weighed = _drawable([gamma * v for gamma, v in zip(gammas, plain, strict=True)])
        sheet.line(i, (epochs, plain), "penalty", "solid", SERIES[0])
        sheet.line(i, (epochs, weighed), "gamma x penalty", "dashed", SERIES[1])
    return sheet.finish(("penalty", "solid"), ("gamma x penalty", "dashed"))


def memory(runs: Sequence[Run]) -> Drawing | None:
    """Memory of one training step against evaluations: the DEQ, unrolled, checkpointed."""
    canvas = Canvas(
        "memory of one training step against depth, for the equilibrium layer and the same layer "
        "unrolled",
        "evaluations of the layer (depth)",
        "memory of a training step, MiB",
        wide=True,
    )
    kinds: tuple[tuple[str, str, Dash, str], ...] = (
        ("deq", "equilibrium layer (DEQ)", "solid", SERIES[0]),
        ("unrolled", "unrolled", "dashed", SERIES[1]),
        ("checkpointed", "unrolled, with checkpointing", "dotted", SERIES[2]),
        ("explicit", "explicit network", "solid", SERIES[3]),
    )
    sheet = Sheet(canvas, runs)
    depths: set[float] = set()
    for i, run in enumerate(runs):
        for kind, label, dash, colour in kinds:
            points = [point for point in run.get("memory") or [] if point["kind"] == kind]
            points.sort(key=lambda point: point["evals"])
            if not points:
                continue
            x = [float(point["evals"]) for point in points]
            y = [point["bytes"] / _MIB for point in points]
            depths.update(x)
            sheet.line(i, (x, y), label, dash, colour)
            if kind == "deq" and len(runs) == 1:
                rest = [max(0.0, p["bytes"] - p["history_bytes"]) / _MIB for p in points]
                canvas.band(x, rest, y, colour, "of which the solver's history", alpha=0.3)
    canvas.ticks(sorted(depths))
    canvas.limits(low=0)
    dashes: list[tuple[str, Dash]] = [(label, dash) for _, label, dash, _ in kinds[:3]]
    return sheet.finish(*dashes)
