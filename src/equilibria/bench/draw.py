"""Drawings of the benchmark, for light and dark pages alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from equilibria.bench.gradient_tables import speed
from equilibria.bench.gradients import GradientReport
from equilibria.bench.solvers import Report
from equilibria.bench.summary import best_peer, ratio

__all__ = ["INK", "STYLE", "adjoints", "solvers", "training"]

INK = "#767676"  # readable on white and on black
COLOURS = {
    "Picard": "#2a78d6",
    "Anderson": "#1baf7a",
    "Broyden": "#c98500",
    "NewtonKrylov": "#8a63d2",
    "Auto": "#d6447a",
    "default": "#d03b3b",
}
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "equilibria",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "ytick.major.size": 0,
    "grid.color": INK,
    "grid.alpha": 0.25,
}


def solvers(reports: Sequence[Report], path: Path) -> None:
    """Times as fast as torchdeq's best, problem by problem; a hollow ring is another of torchdeq's.

    Args:
        reports: what was measured.
        path: the SVG to write.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(8.5, 1.2 + 0.24 * max(1, len(reports))), layout="constrained")
        axes = figure.add_subplot()
        axes.set_xscale("log")
        axes.grid(axis="both")
        axes.axvline(1, color=INK, lw=1.2)
        for place, report in enumerate(reversed(reports)):
            best = best_peer(report)
            for each in report.measured:
                speed = ratio(each, best)
                if speed is None or each.family == "scipy":
                    continue
                ours = each.family == "equilibria"
                face = COLOURS.get(each.method, INK) if ours else "none"
                edge = face if ours else COLOURS.get(each.method, INK)
                size = 22 if each.method == "default" else 34
                marker = "D" if each.method == "default" else "o"
                axes.scatter([speed], [place], s=size, marker=marker, c=face, edgecolors=edge)
        axes.set_yticks(range(len(reports)), [r.problem for r in reversed(reports)])
        axes.set_ylim(-0.7, len(reports) - 0.3)
        axes.set_xlabel("times as fast as torchdeq's fastest method (rings: torchdeq's others)")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        names = dict.fromkeys(
            m.method for r in reports for m in r.measured if m.family == "equilibria"
        )
        for name in names:
            marker = "D" if name == "default" else "o"
            axes.scatter([], [], c=COLOURS.get(name, INK), marker=marker, label=name)
        if names:
            axes.legend(frameon=False, ncols=6, loc="lower left", bbox_to_anchor=(0, 1))
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})


def adjoints(reports: Sequence[GradientReport], path: Path) -> None:
    """Relative error, time and memory of every gradient, a colour for each spectral radius."""
    names = list(dict.fromkeys(m.method for r in reports for m in r.measured))
    places = {name: len(names) - 1 - i for i, name in enumerate(names)}
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.5, 1.4 + 0.2 * max(1, len(names))), layout="constrained")
        error, time, memory = figure.subplots(1, 3, sharey=True)
        for report, colour in zip(reports, COLOURS.values(), strict=False):
            size = report.state_bytes
            for axes, figures in (
                (error, [m.error for m in report.measured]),
                (time, [m.backward_ms for m in report.measured]),
                (memory, [m.bytes and m.bytes / size for m in report.measured]),
            ):
                points = [
                    (x, places[m.method])
                    for x, m in zip(figures, report.measured, strict=True)
                    if x is not None and 0 < x < 1e9
                ]
                x, y = [p[0] for p in points], [p[1] for p in points]
                axes.scatter(x, y, s=22, c=colour, alpha=0.85, label=report.problem)
        titles = ("relative error", "backward, ms", "peak of a step, in states")
        for axes, title in zip((error, time, memory), titles, strict=True):
            axes.set_xscale("log")
            axes.grid()
            axes.set_xlabel(title)
        error.set_yticks(list(places.values()), list(places))
        error.set_ylim(-0.7, max(1, len(names)) - 0.3)
        if reports:
            error.legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})


def training(reports: Sequence[GradientReport], path: Path, rtol: float) -> None:
    """Times as fast as torchdeq's fastest exact training step."""
    names = list(
        dict.fromkeys(m.method for r in reports for m in r.measured if m.family == "equilibria")
    )
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 1.4 + 0.35 * max(1, len(reports))), layout="constrained")
        axes = figure.add_subplot()
        axes.grid()
        axes.axvline(1, color=INK, lw=1.2)
        for i, name in enumerate(names):
            colour = list(COLOURS.values())[i % len(COLOURS)]
            found = [(speed(r, name, rtol), place) for place, r in enumerate(reversed(reports))]
            points = [(s, place) for s, place in found if s is not None]
            axes.scatter([p[0] for p in points], [p[1] for p in points], c=colour, label=name)
        axes.set_yticks(range(len(reports)), [r.problem for r in reversed(reports)])
        axes.set_ylim(-0.7, len(reports) - 0.3)
        axes.set_xlabel("times as fast as torchdeq's fastest exact setting")
        if names:
            axes.legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1))
        figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})
