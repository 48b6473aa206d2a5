"""How a panel is drawn on axes of matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from equilibria.run.report.panel import Numbers, Panel, Series

__all__ = ["colour_of", "draw_panel"]

MAX_POINTS = 160
"""Maximum points drawn of a series; a longer one is thinned evenly, as a picture is too narrow."""

MAX_MARKED = 40
"""Maximum points of a line with markers; a longer one is drawn without them."""

_NARROWEST = 1.1
"""Minimum ratio of the ends of a logarithmic axis: within less, ticks would be labelled alike."""

_DASHES: dict[str, Any] = {"dashed": (0, (4, 2.5)), "dotted": (0, (1, 2))}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def colour_of(panel: Panel, place: int) -> str:
    """Return the name in the style sheet of a series' colour."""
    colour = panel.series[place].colour
    if isinstance(colour, str):
        return colour
    return f"series-{(place if colour is None else colour) % 8 + 1}"


def draw_panel(axes: Any, panel: Panel, colours: Mapping[str, str]) -> bool:
    """Draw all but title, name of y and legend; return whether there is any point.

    Args:
        axes: of matplotlib.
        panel: what to draw.
        colours: by their names in the style sheet.
    """
    axes.set_xlabel(panel.x)
    axes.grid(axis="both" if panel.names_y else "y")
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    drawn = [
        _draw(axes, panel, series, colours[colour_of(panel, place)])
        for place, series in enumerate(panel.series)
    ]
    if not any(drawn):
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center")
        return False
    for low, high in panel.bands:
        axes.axhspan(low, high, color=colours["muted"], alpha=0.12, lw=0)
    for label, height in panel.levels:
        rule = axes.axvline if panel.names_y else axes.axhline
        rule(height, color=colours["muted"], lw=1, ls=_DASHES["dashed"])
        if not panel.names_y:
            axes.annotate(
                label, (1, height), (0, 2), xycoords=axes.get_yaxis_transform(), ha="right",
                textcoords="offset points", size="small",
            )  # fmt: skip
    _scale(axes, panel)
    return True


def _draw(axes: Any, panel: Panel, series: Series, colour: str) -> bool:
    """Draw one series; return whether it has points."""
    style, label = series.style, series.label or None
    points = _points(panel, series.x, series.y) if series.y else []
    edges = _points(panel, series.x, series.low, series.high) if series.low else []
    x, y = zip(*points, strict=True) if points else ((), ())
    if series.x and not points and not edges:
        return False
    if style == "bars":
        _bars(axes, panel, series, colour, points)
    elif style == "blocks":
        at, low, high = zip(*edges, strict=True)
        heights = [b - a for a, b in zip(low, high, strict=True)]
        axes.bar(at, heights, 0.82, low, color=colour, label=label)
    elif style == "points":
        size = 24 if panel.names_y else 9
        axes.scatter(x, y, size, color=colour, alpha=0.55, linewidths=0, label=label)
    elif style == "rings":
        axes.scatter(x, y, 24, facecolors="none", edgecolors=colour, label=label)
    elif style != "band":
        marker = "o" if len(x) == 1 or (style == "marked" and len(x) <= MAX_MARKED) else ""
        axes.plot(x, y, color=colour, ls=_DASHES.get(style, "-"), marker=marker, label=label)
    if edges and style != "blocks":
        label = label if style == "band" else None
        axes.fill_between(*zip(*edges, strict=True), color=colour, alpha=0.18, lw=0, label=label)
    return bool(points or edges)


def _bars(axes: Any, panel: Panel, series: Series, colour: str, points: Sequence[Any]) -> None:
    """Draw the bars of a series next to those of the others."""
    others = [each for each in panel.series if each.style == "bars"]
    width = 0.8 / len(others)
    shift = (others.index(series) - (len(others) - 1) / 2) * width
    x, y = zip(*((at + shift, height) for at, height in points), strict=True)
    drawn = axes.bar(x, y, 0.92 * width, color=colour, label=series.label or None)
    axes.bar_label(drawn, fmt="%.3g", size="x-small", padding=1)


def _points(panel: Panel, x: Numbers, *heights: Numbers) -> list[Any]:
    """The points that can be drawn, or so many of them with both ends."""
    found = [
        point
        for point in zip(x, *heights, strict=True)
        if _fits(point[0], panel.log_x) and all(_fits(each, panel.log_y) for each in point[1:])
    ]
    last = len(found) - 1
    if last < MAX_POINTS:
        return found
    return [found[round(k * last / (MAX_POINTS - 1))] for k in range(MAX_POINTS)]


def _fits(value: float | None, log: bool) -> bool:
    """Whether an axis can show it: far beyond, matplotlib's ticks overflow."""
    return value is not None and abs(value) < 1e30 and (value > 1e-30 or not log)


def _scale(axes: Any, panel: Panel) -> None:
    """Set the ends and the ticks of both axes."""
    if panel.zero and not panel.log_y:
        axes.set_ylim(bottom=0)
    if panel.span_x:
        axes.set_xlim(panel.span_x)
    if panel.span_y:
        axes.set_ylim(panel.span_y)
    if panel.names:
        axes.set_xticks(range(len(panel.names)), panel.names)
    elif panel.ticks_x:
        ticks = sorted({x for each in panel.series for x, *_ in _points(panel, each.x)})
        axes.set_xticks(ticks, [f"{each:g}" for each in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
    elif panel.log_x:
        _log_ticks(axes.xaxis)
    elif panel.whole_x:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if panel.names_y:
        axes.set_yticks(range(len(panel.names_y)), panel.names_y)
        axes.set_ylim(len(panel.names_y) - 0.4, -0.6)
    elif panel.log_y:
        _log_ticks(axes.yaxis)
    elif panel.percent:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))


def _log_ticks(axis: Any) -> None:
    """Powers of ten; 1, 2 and 5 times these over few decades; round numbers within one."""
    low, high = sorted(axis.get_view_interval())
    if high < _NARROWEST * low:
        middle, half = math.sqrt(low * high), math.sqrt(_NARROWEST)
        low, high = middle / half, middle * half
        axis.set_view_interval(low, high, ignore=True)
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    wide, each = high > 1000 * low, math.ceil(len(exponents) / 8)
    ticks = [
        step * 10.0**exponent
        for exponent in exponents
        for step in ((1,) if wide else (1, 2, 5))
        if not wide or exponent % each == 0
    ]
    if sum(low <= tick <= high for tick in ticks) < 3:
        ticks = list(MaxNLocator(4).tick_values(low, high))
    ticks = [float(tick) for tick in ticks if low <= tick <= high]
    plain = not wide and ticks[0] > 1e-4 and ticks[-1] < 1e5
    axis.set_ticks(ticks, labels=[f"{tick:.4g}" if plain else _power(tick) for tick in ticks])
    axis.set_minor_locator(NullLocator())


def _power(value: float) -> str:
    """10⁻³, or 2·10⁻³."""
    factor, exponent = f"{value:.3e}".split("e")
    power = "10" + str(int(exponent)).translate(_SUPERSCRIPT)
    return power if float(factor) == 1 else f"{float(factor):g}·{power}"
