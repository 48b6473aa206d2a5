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

from equilibria.run.report.axes import colour_of, draw_panel
from equilibria.run.report.panel import Panel
from equilibria.run.report.surfaces import SurfacePlot, draw_surfaces

__all__ = ["Drawing", "inline", "picture"]

_TEMPLATE = resources.files("equilibria.run.report").joinpath("template")
_RULES = str(_TEMPLATE.joinpath("plots.mplstyle"))
_CSS = _TEMPLATE.joinpath("page.css").read_text("utf-8")
_LIGHT = dict(re.findall(r"--([\w-]+): (#\w{6})", _CSS[: _CSS.index("@media")]))

# A file has one set of colours for light and dark pages: this grey is readable on both.
_FIXED = _LIGHT | {"ink": "#767676", "muted": "#767676", "grid": "#76767650"}

# Matplotlib knows no variables: each is drawn in a colour that occurs nowhere else.
_STAND_IN = {name: f"#{place:02x}e1d5" for place, name in enumerate(_LIGHT)}


def _style(colours: Mapping[str, str], salt: str) -> AbstractContextManager[None]:
    """Matplotlib's settings; identifiers within the SVG depend on `salt`."""
    parts = {
        "muted": ("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"),
        "grid": ("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"),
    }
    rules: Any = {part: colours[name] for name, several in parts.items() for part in several}
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
        return _saved(figure)


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
        svg = _element(_saved(figure), panel.title)
    drawn = axes.get_legend_handles_labels()[1]
    legend: dict[str, tuple[str, str, str]] = {}
    for place, each in enumerate(panel.series):
        if each.label in drawn:
            legend.setdefault(each.label, (each.label, colour_of(panel, place), each.style))
    return Drawing(panel.title, svg, list(legend.values()), wide)


def _saved(figure: Figure) -> str:
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
