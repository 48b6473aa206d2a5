"""The plots of a report, each a function of runs; None where no run has measured what it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isfinite, nan
from operator import itemgetter
from typing import Any

from equilibria.metric import Metric
from equilibria.run.report import reading
from equilibria.run.report.panel import Panel, Series, Style
from equilibria.run.report.reading import Row, Run, number, pick
from equilibria.run.report.svg import Drawing, inline

_STATUS_COLOR = {
    "CONVERGED": "good",
    "MAX_EVALS": "warn",
    "STALLED": "serious",
    "DIVERGED": "bad",
    "NONFINITE": "ink",
}
_FLAT = 0.05
"""Shares of one that differ by less may be noise: their axis is this long."""

Height = Callable[[Row], float]
Mark = tuple[Series, Mapping[str, Height]]
"""A look, and y, or low and high, of a row."""


def _plot(
    runs: Sequence[Run],
    rows_of: Callable[[Run], Sequence[Row]],
    key: str,
    *marks: Mark,
    wide: bool = False,
    **axes: Any,
) -> Drawing | None:
    """Plot the marks of the rows of each run against a key, in axes of these options.

    Marks of one run have their colours. Of several a colour is a run: the legend names the runs
    and, in grey, the marks.
    """
    series: list[Series] = []
    for place, run in enumerate(runs):
        own: Any = {"label": run["name"], "color": place} if len(runs) > 1 else {}
        if rows := rows_of(run):
            own["x"] = [number(row, key) for row in rows]
            for look, heights in marks:
                drawn = {name: [of(row) for row in rows] for name, of in heights.items()}
                series.append(replace(look, **own, **drawn))
    if len(runs) > 1:
        series += [replace(look, color="muted") for look, _ in marks]
    return inline(Panel(series=series, **axes), wide=wide)


def _epochs(runs: Sequence[Run], marks: Mapping[str, Height], **axes: Any) -> Drawing | None:
    """Plot what each epoch has, under up to three labels."""
    styles: tuple[Style, ...] = ("marked", "dashed", "dotted")
    looks = [
        (Series(label=label, style=style), {"y": of})
        for style, (label, of) in zip(styles, marks.items(), strict=False)
    ]
    rows_of = itemgetter("metrics")
    return _plot(runs, rows_of, "epoch", *looks, x="epoch", whole_x=True, **axes)


def _at(*path: str, scale: float = 1) -> Height:
    return lambda row: scale * number(row, *path)


def _axis(metric: Metric) -> dict[str, Any]:
    """Options of axes whose y is a metric: shares of one are written in per cent."""
    unit = f", {metric.unit.strip()}" if metric.unit.strip() and metric.scale != 100 else ""
    return {"y": f"{metric.label}{unit}", "percent": metric.scale == 100}


def _factor(metric: Metric) -> float:
    return 1 if metric.scale == 100 else metric.scale


def learning_curve(runs: Sequence[Run], metric: Metric) -> Drawing | None:
    """A metric of the held-out and the training data against epochs."""
    held, train = (_at(part, metric.name, scale=_factor(metric)) for part in ("held", "train"))
    rows = [row for run in runs for row in run["metrics"]]
    positive = not any(held(row) <= 0 or train(row) <= 0 for row in rows)
    return _epochs(
        runs,
        {reading.name_held(runs): held, "training": train},
        title=metric.title,
        log_y=metric.scale != 100 and positive,
        **_axis(metric),
    )


def evaluations(runs: Sequence[Run]) -> Drawing | None:
    """Evaluations per epoch: of f in the forward, of its transpose in the backward solve."""
    return _epochs(
        runs,
        {
            "forward": _at("train", "forward", "evals", "mean"),
            "backward": _at("train", "adjoint", "evals", "mean"),
            "forward, 99 % of the samples": _at("train", "forward", "evals", "p99"),
        },
        title="Evaluations in each epoch",
        y="evaluations per sample, training",
        zero=True,
    )


def spectral_radius(runs: Sequence[Run]) -> Drawing | None:
    """Spectral radius of J = df/dz on held-out samples, mean and largest, per epoch."""
    shares = [
        number(row, "held", "forward", "status", "CONVERGED")
        for run in runs
        for row in run["metrics"]
    ]
    return _epochs(
        runs,
        {
            "mean over samples": _at("spectral_radius", "mean"),
            "largest sample": _at("spectral_radius", "max"),
        },
        title="Spectral radius",
        y="spectral radius of J at "
        + ("z*" if all(each == 1 for each in shares) else "the end of each solve"),
        levels=[("plain iteration no longer converges", 1.0)],
        zero=True,
        wide=True,
    )


def penalty(runs: Sequence[Run]) -> Drawing | None:
    """The Jacobian penalty per epoch, before and after weighting by gamma."""
    plain, gamma = _at("regulariser", "penalty"), _at("regulariser", "gamma")
    return _epochs(
        runs,
        {"penalty": plain, "gamma x penalty": lambda row: gamma(row) * plain(row)},
        title="Jacobian penalty",
        y="‖J‖² / entries",
        log_y=True,
        wide=True,
    )


def residual(runs: Sequence[Run]) -> Drawing | None:
    """Relative residual of a test batch against evaluations, percentiles over samples."""

    def trace(run: Run) -> list[Row]:
        columns = pick(run, "examination", "forward", "trace") or {}
        rows = zip(*columns.values(), strict=False)  # of a damaged file they may differ in length
        return [dict(zip(columns, row, strict=True)) for row in rows]

    tolerances = {number(run, "examination", "forward", "rtol") for run in runs}
    return _plot(
        runs,
        trace,
        "evals",
        (Series(label="median sample"), {"y": _at("p50")}),
        (Series(label="worst sample", style="dotted", color=0), {"y": _at("max")}),
        (
            Series(label="10 % to 90 % of samples", style="band", color=0),
            {"low": _at("p10"), "high": _at("p90")},
        ),
        title="Residual against evaluations",
        x="evaluations of f",
        y="relative residual ‖f(z) − z‖ / ‖f(z)‖",
        levels=[(f"tolerance {each:g}", each) for each in sorted(tolerances) if each > 0],
        log_y=True,
        whole_x=True,
        wide=True,
    )


def read_early(runs: Sequence[Run], metric: Metric) -> Drawing | None:
    """A figure on the test data, of the answer read out after a few evaluations."""
    return _plot_figure(
        runs,
        metric,
        reading.early_points,
        [reading.end_point(runs[0], metric)],
        title="Effect of depth",
        x="evaluations of f before the answer is read out",
    )


def under_budgets(runs: Sequence[Run], metric: Metric) -> Drawing | None:
    """A figure of data read in streams, whose solves are stopped after a few evaluations."""
    baseline = pick(runs[0], "evaluation", "baseline")
    return _plot_figure(
        runs,
        metric,
        reading.budget_points,
        [(str(pick(baseline, "name")), number(baseline, metric.name))],
        title="Effect of more evaluations",
        x="maximum number of evaluations of f per segment",
        log_y=metric.scale != 100,
    )


def _plot_figure(
    runs: Sequence[Run],
    metric: Metric,
    points_of: Callable[[Run, Metric], Mapping[float, float]],
    levels: Sequence[tuple[str, float]],
    **axes: Any,
) -> Drawing | None:
    """Plot a figure against evaluations, with the levels of a single run."""
    factor = _factor(metric)
    points = {run["name"]: points_of(run, metric) for run in runs}
    if len({evals for each in points.values() for evals in each}) < 2:
        return None  # nothing to compare
    seen = [value for each in points.values() for value in each.values()]
    flat = metric.scale == 100 and seen and max(seen) - min(seen) < _FLAT
    return _plot(
        runs,
        lambda run: [{"evals": x, "figure": y} for x, y in points[run["name"]].items()],
        "evals",
        (Series(label="", style="marked"), {"y": _at("figure", scale=factor)}),
        levels=[(name, factor * y) for name, y in levels if len(runs) == 1 and isfinite(y)],
        log_x=True,
        ticks_x=True,
        span_y=(max(seen) - _FLAT, max(seen) + _FLAT / 5) if flat else None,
        **_axis(metric),
        **axes,
    )


def memory(runs: Sequence[Run]) -> Drawing | None:
    """Memory of one training step against evaluations: the DEQ, unrolled, checkpointed."""

    def mib(kind: str, less: str = "") -> Height:
        return lambda row: (
            max(0, row["bytes"] - row.get(less, 0)) / 2**20 if row["kind"] == kind else nan
        )

    marks: list[Mark] = [
        (Series(label="equilibrium layer (DEQ)", style="marked"), {"y": mib("deq")}),
        (Series(label="unrolled", style="dashed"), {"y": mib("unrolled")}),
        (Series(label="unrolled, with checkpointing", style="dotted"), {"y": mib("checkpointed")}),
        (Series(label="explicit network", style="marked"), {"y": mib("explicit")}),
    ]
    if len(runs) == 1:
        band = Series(label="of which the solver's history", style="band", color=0)
        marks.append((band, {"low": mib("deq", "history_bytes"), "high": mib("deq")}))
    return _plot(
        runs,
        lambda run: sorted(reading.memory_of(run), key=lambda row: row["evals"]),
        "evals",
        *marks,
        title="Memory of one training step against depth",
        x="evaluations of the layer (depth)",
        y="memory of a training step, MiB",
        ticks_x=True,
        zero=True,
        wide=True,
    )


def status(runs: Sequence[Run]) -> Drawing | None:
    """How the solves of each epoch ended: shares by status, a row for every run and solve."""
    kinds = (
        ("held", "forward", f"forward, {reading.name_held(runs)}"),
        ("train", "forward", "forward, training"),
        ("train", "adjoint", "backward, training"),
    )
    names: list[str] = []
    series: list[Series] = []
    for run in runs:
        epochs = [number(row, "epoch") for row in run["metrics"]]
        for part, solve, label in kinds:
            shares = [pick(row, part, solve, "status") or {} for row in run["metrics"]]
            if not any(shares):
                continue
            # The stack of an epoch grows upward, and rows are counted from the top.
            base = [len(names) + 0.4 for _ in epochs]
            for name, color in _STATUS_COLOR.items():
                of = zip(base, shares, strict=True)
                top = [low - 0.8 * each.get(name, 0) for low, each in of]
                if top != base:
                    look = Series(label=name, color=color, style="blocks")
                    series.append(replace(look, x=epochs, low=top, high=base))
                base = top
            names.append(label if len(runs) == 1 else f"{run['name']}: {label}")
    axes: Any = {"title": "How solves end", "x": "epoch", "y": "", "whole_x": True}
    return inline(Panel(series=series, names_y=names, **axes), wide=True)
