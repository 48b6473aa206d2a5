"""The figure of an experiment: panels of lines, points, bars, for light and dark pages alike."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from equilibria.bench.draw import INK, STYLE
from equilibria.experiments.relief import Relief, relief
from equilibria.train import files

__all__ = ["COLOURS", "Panel", "Series", "draw"]

Numbers = Sequence[float | None]

COLOURS = ("#2a78d6", "#d03b3b", "#1baf7a", "#c98500", "#8a63d2", "#d6447a", "#4aa3a2", "#8c6d46")
"""Told apart on light and dark ground, in the order in which series take them."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a panel; a point that is None or not finite is left out.

    Args:
        label: in the legend; empty for none.
        x: where the points are.
        y: their heights, as many.
        low: lower edge of a band around the line; empty for none.
        high: its upper edge.
        colour: index into `COLOURS`; None for the next one.
        style: a line, a line with points, dashes, points alone, or bars, which stand beside those
            of the panel's other series.
    """

    label: str
    x: Numbers
    y: Numbers
    low: Numbers = ()
    high: Numbers = ()
    colour: int | None = None
    style: Literal["line", "marked", "dashed", "points", "bars"] = "line"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A pair of axes.

    Args:
        title: what it shows.
        x: name of the horizontal axis, with its unit.
        y: name of the vertical axis, with its unit.
        series: lines; a panel without any says that nothing was run.
        log_x: logarithmic axis.
        log_y: logarithmic axis.
        whole_x: x counts something.
        zero: the vertical axis begins at 0.
        levels: heights of horizontal rules, such as a published figure, by what they are.
        bands: lower and upper ends of heights that are shaded.
        names: what stands at x = 0, 1, 2, ..., in place of these numbers.
        span_x: ends of the horizontal axis; None for what the series reach.
        span_y: ends of the vertical axis.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    whole_x: bool = False
    zero: bool = False
    levels: Sequence[tuple[str, float]] = ()
    bands: Sequence[tuple[float, float]] = ()
    names: Sequence[str] = ()
    span_x: tuple[float, float] | None = None
    span_y: tuple[float, float] | None = None


def draw(panels: Sequence[Panel | Relief], path: Path) -> None:
    """Write the panels as one SVG, the same to the last byte for the same figures.

    Args:
        panels: at least one; three stand side by side.
        path: the file.
    """
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(4.3 * columns, 3.6 * rows), layout="constrained")
        for place, panel in enumerate(panels, start=1):
            if isinstance(panel, Relief):
                axes = figure.add_subplot(rows, columns, place, projection="3d")
                relief(axes, panel, COLOURS, INK)
            else:
                _panel(figure.add_subplot(rows, columns, place), panel)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    files.write_bytes(path, buffer.getvalue())


def _panel(axes: Any, panel: Panel) -> None:
    axes.set_title(panel.title, loc="left", fontsize=9, color=INK, wrap=True)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.grid()
    if panel.log_x:
        axes.set_xscale("log")
    elif panel.whole_x:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.log_y:
        axes.set_yscale("log")
    if panel.names:
        axes.set_xticks(range(len(panel.names)), panel.names)
    bars = [series for series in panel.series if series.style == "bars"]
    drawn = 0
    for place, series in enumerate(panel.series):
        index = place if series.colour is None else series.colour
        colour = COLOURS[index % len(COLOURS)]
        if series.style == "bars":
            drawn += _bars(axes, series, colour, panel, bars.index(series), len(bars))
        else:
            drawn += _series(axes, series, colour, panel)
    if not drawn:
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", color=INK)
        return
    for low, high in panel.bands:
        axes.axhspan(low, high, color=INK, alpha=0.12, lw=0)
    for label, height in panel.levels:
        axes.axhline(height, color=INK, lw=1, ls=":")
        axes.annotate(
            label, (1, height), xycoords=("axes fraction", "data"), ha="right", va="bottom",
            fontsize=7.5,
        )  # fmt: skip
    for axis, log in ((axes.xaxis, panel.log_x), (axes.yaxis, panel.log_y)):
        low, high = axis.get_view_interval()
        if log and high < 10 * low:  # within a decade powers of ten tell nothing
            axis.set_major_locator(MaxNLocator(4))
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    if panel.zero and not panel.log_y:
        axes.set_ylim(bottom=0)
    if panel.span_x:
        axes.set_xlim(*panel.span_x)
    if panel.span_y:
        axes.set_ylim(*panel.span_y)
    if any(series.label for series in panel.series):
        axes.legend(frameon=False, fontsize=7.5)


def _series(axes: Any, series: Series, colour: str, panel: Panel) -> int:
    """Draw one series and return how many of its points there are."""
    points = list(zip(series.x, series.y, strict=True))
    shown = [(x, y) for x, y in points if _fits(x, panel.log_x) and _fits(y, panel.log_y)]
    if not shown:
        return 0
    x, y = zip(*shown, strict=True)
    label = series.label or None
    if series.style == "points":
        axes.scatter(x, y, s=9, color=colour, alpha=0.55, label=label, linewidths=0)
    else:
        axes.plot(
            x,
            y,
            color=colour,
            lw=1.6,
            ls="--" if series.style == "dashed" else "-",
            marker="o" if series.style == "marked" or len(shown) == 1 else None,
            ms=3.5,
            label=label,
        )
    if series.low and series.high:
        edges = [
            (a, b, c)
            for a, b, c in zip(series.x, series.low, series.high, strict=True)
            if _fits(a, panel.log_x) and _fits(b, panel.log_y) and _fits(c, panel.log_y)
        ]
        if edges:
            a, b, c = zip(*edges, strict=True)
            assert all(one <= other for one, other in pairwise(a)), "a band runs to the right"
            axes.fill_between(a, b, c, color=colour, alpha=0.15, lw=0)
    return len(shown)


def _bars(axes: Any, series: Series, colour: str, panel: Panel, place: int, count: int) -> int:
    """Draw the bars of one of `count` series side by side and return how many there are."""
    points = zip(series.x, series.y, strict=True)
    shown = [(x, y) for x, y in points if x is not None and _fits(y, panel.log_y)]
    if not shown:
        return 0
    width = 0.8 / count
    shift = (place - (count - 1) / 2) * width
    found = axes.bar(
        [x + shift for x, _ in shown],
        [y for _, y in shown],
        0.92 * width,
        color=colour,
        label=series.label or None,
    )
    axes.bar_label(found, fmt="%.3g", fontsize=7, padding=1)
    return len(shown)


def _fits(value: float | None, log: bool) -> bool:
    return value is not None and math.isfinite(value) and (value > 0 or not log)
