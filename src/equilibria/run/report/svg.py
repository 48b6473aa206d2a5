"""Panels as SVG, in one style: for a file in fixed colours, for a page in those of its theme.

Text stays text. The names and the fixed colours are those of the pages' style sheet.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import resources
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from equilibria.run.report.panel import Numbers, Panel, Series
from equilibria.run.report.surfaces import SurfacePlot, draw_surfaces

# --- axes -----------------------------------------------------------------------------------------

# How a panel is drawn on axes of matplotlib.


MAX_POINTS = 160
"""Maximum points drawn of a series; a longer one is thinned evenly, as a picture is too narrow."""

MAX_MARKED = 40
"""Maximum points of a line with markers; a longer one is drawn without them."""

_NARROWEST = 1.1
"""Minimum ratio of the ends of a logarithmic axis: within less, ticks would be labelled alike."""

_DASHES: dict[str, Any] = {"dashed": (0, (4, 2.5)), "dotted": (0, (1, 2))}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def color_of(panel: Panel, place: int) -> str:
    """Return the name in the style sheet of a series' colour."""
    color = panel.series[place].color
    if isinstance(color, str):
        return color
    return f"series-{(place if color is None else color) % 8 + 1}"


def draw_panel(axes: Any, panel: Panel, colors: Mapping[str, str]) -> bool:
    """Draw all but title, name of y and legend; return whether there is any point.

    Args:
        axes: of matplotlib.
        panel: what to draw.
        colors: by their names in the style sheet.
    """
    axes.set_xlabel(panel.x)
    axes.grid(axis="both" if panel.names_y else "y")
    axes.set_xscale("log" if panel.log_x else "linear")
    axes.set_yscale("log" if panel.log_y else "linear")
    drawn = [
        _draw(axes, panel, series, colors[color_of(panel, place)])
        for place, series in enumerate(panel.series)
    ]
    if not any(drawn):
        axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center")
        return False
    for low, high in panel.bands:
        axes.axhspan(low, high, color=colors["muted"], alpha=0.12, lw=0)
    for label, height in panel.levels:
        rule = axes.axvline if panel.names_y else axes.axhline
        rule(height, color=colors["muted"], lw=1, ls=_DASHES["dashed"])
        if not panel.names_y:
            axes.annotate(
                label, (1, height), (0, 2), xycoords=axes.get_yaxis_transform(), ha="right",
                textcoords="offset points", size="small",
            )  # fmt: skip
    _scale(axes, panel)
    return True


def _draw(axes: Any, panel: Panel, series: Series, color: str) -> bool:
    """Draw one series; return whether it has points."""
    style, label = series.style, series.label or None
    points = _points(panel, series.x, series.y) if series.y else []
    edges = _points(panel, series.x, series.low, series.high) if series.low else []
    x, y = zip(*points, strict=True) if points else ((), ())
    if series.x and not points and not edges:
        return False
    if style == "bars":
        _bars(axes, panel, series, color, points)
    elif style == "blocks":
        at, low, high = zip(*edges, strict=True)
        heights = [b - a for a, b in zip(low, high, strict=True)]
        axes.bar(at, heights, 0.82, low, color=color, label=label)
    elif style == "points":
        size = 24 if panel.names_y else 9
        axes.scatter(x, y, size, color=color, alpha=0.55, linewidths=0, label=label)
    elif style == "rings":
        axes.scatter(x, y, 24, facecolors="none", edgecolors=color, label=label)
    elif style != "band":
        marker = "o" if len(x) == 1 or (style == "marked" and len(x) <= MAX_MARKED) else ""
        axes.plot(x, y, color=color, ls=_DASHES.get(style, "-"), marker=marker, label=label)
    if edges and style != "blocks":
        label = label if style == "band" else None
        axes.fill_between(*zip(*edges, strict=True), color=color, alpha=0.18, lw=0, label=label)
    return bool(points or edges)


def _bars(axes: Any, panel: Panel, series: Series, color: str, points: Sequence[Any]) -> None:
    """Draw the bars of a series next to those of the others."""
    others = [each for each in panel.series if each.style == "bars"]
    width = 0.8 / len(others)
    shift = (others.index(series) - (len(others) - 1) / 2) * width
    x, y = zip(*((at + shift, height) for at, height in points), strict=True)
    drawn = axes.bar(x, y, 0.92 * width, color=color, label=series.label or None)
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


# --- svg ------------------------------------------------------------------------------------------


_TEMPLATE = resources.files("equilibria.run.report").joinpath("template")
_RULES = str(_TEMPLATE.joinpath("plots.mplstyle"))
_CSS = _TEMPLATE.joinpath("page.css").read_text("utf-8")
_LIGHT = dict(re.findall(r"--([\w-]+): (#\w{6})", _CSS[: _CSS.index("@media")]))

# A file has one set of colours for light and dark pages: this grey is readable on both.
_FIXED = _LIGHT | {"ink": "#767676", "muted": "#767676", "grid": "#76767650"}

# Matplotlib knows no variables: each is drawn in a colour that occurs nowhere else.
_STAND_IN = {name: f"#{place:02x}e1d5" for place, name in enumerate(_LIGHT)}


def _style(colors: Mapping[str, str], salt: str) -> AbstractContextManager[None]:
    """Matplotlib's settings; identifiers within the SVG depend on `salt`."""
    parts = {
        "muted": ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"),
        "grid": ("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"),
    }
    rules: Any = {part: colors[name] for name, several in parts.items() for part in several}
    return mpl.rc_context(rules | {"svg.hashsalt": salt}, _RULES)


def picture(panels: Sequence[Panel | SurfacePlot]) -> str:
    """Return an SVG document, the same to the last byte for the same figures.

    Args:
        panels: at least one; three per row, each with its title and legend.
    """
    columns = min(3, len(panels))
    rows = math.ceil(len(panels) / columns)
    names = max(len(getattr(panel, "names_y", ())) for panel in panels)
    width, height = (max(4.3 * columns, 6.5), 1.2 + 0.17 * names) if names else (4.3 * columns, 0)
    with _style(_FIXED, "equilibria"):
        figure = Figure(figsize=(width, max(3.6, height) * rows), layout="constrained")
        for place, panel in enumerate(panels, start=1):
            solid = isinstance(panel, SurfacePlot)
            axes: Any = figure.add_subplot(rows, columns, place, projection="3d" if solid else None)
            axes.set_title(panel.title if solid else f"{panel.title}\n{panel.y}".strip(), wrap=True)
            if draw_surfaces(axes, panel, _FIXED) if solid else draw_panel(axes, panel, _FIXED):
                _legend(axes, panel)
        return _save(figure)


def _legend(axes: Any, panel: Panel | SurfacePlot) -> None:
    """Each label once."""
    handles, labels = (each[::-1] for each in axes.get_legend_handles_labels())
    first = dict(reversed(dict(zip(labels, handles, strict=True)).items()))
    if getattr(panel, "names_y", ()):
        axes.figure.legend(first.values(), first, loc="outside lower center", ncols=4)
    elif first:
        place: Any = {"loc": "upper left"} if isinstance(panel, SurfacePlot) else {}
        axes.legend(first.values(), first, **place)


@dataclass(frozen=True)
class Drawing:
    """An `<svg>` element of a page.

    Attributes:
        title: of the panel.
        svg: the element.
        legend: its entries: label, colour and the class of the mark in the style sheet.
        wide: whether it needs the page's width, or half of it.
    """

    title: str
    svg: str
    legend: Sequence[tuple[str, str, str]]
    wide: bool


def inline(panel: Panel, *, wide: bool = False) -> Drawing | None:
    """Return a panel as an element whose colours are variables of the page's style sheet.

    Title and legend are the page's. None of a panel without a point.
    """
    height = 0.65 + 0.52 * len(panel.names_y) if panel.names_y else 3.3 if wide else 2.95
    with _style(_STAND_IN, f"{panel.title} {panel.y}"):
        figure = Figure(figsize=(11.3 if wide else 5.3, height), layout="constrained")
        axes: Any = figure.add_subplot()
        axes.set_title(panel.y)
        if not draw_panel(axes, panel, _STAND_IN):
            return None
        svg = _element(_save(figure), panel.title)
    drawn = axes.get_legend_handles_labels()[1]
    legend: dict[str, tuple[str, str, str]] = {}
    for place, each in enumerate(panel.series):
        if each.label in drawn:
            legend.setdefault(each.label, (each.label, color_of(panel, place), each.style))
    return Drawing(panel.title, svg, list(legend.values()), wide)


def _save(figure: Figure) -> str:
    """The document, its coordinates rounded: matplotlib's six decimals are half of the file."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    tags = re.compile(r"<[^>]*>")
    return tags.sub(lambda tag: re.sub(r"-?\d+\.\d{2,}", _short, tag[0]), buffer.getvalue())


def _short(found: re.Match[str]) -> str:
    value = float(found[0])
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _element(svg: str, title: str) -> str:
    """The element alone, without metadata or any address, in the page's variables."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # the same in every plot; only <defs> are referred to
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    svg = re.sub(r"<svg[^>]*>", f'<svg {box[0]} role="img" aria-label="{label}">', svg, count=1)
    svg = re.sub(r"\s*\n\s*", " ", svg)
    for name, stand_in in _STAND_IN.items():
        svg = svg.replace(stand_in, f"var(--{name})")
    return svg
