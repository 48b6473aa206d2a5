"""One plot as inline SVG whose colours are variables of the page's style sheet.

Matplotlib knows no light and dark. The plot is drawn in stand-in colours that occur nowhere else;
in the SVG each is replaced by `var(--name)`, so that one drawing follows the reader's theme. Text
stays text and takes the page's font.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter

__all__ = ["SERIES", "Canvas", "Drawing", "Key"]

SERIES = tuple(f"series-{i}" for i in range(1, 9))
"""Names of the colours that tell series apart, in the order in which they are taken."""

_NAMES = (*SERIES, "ink", "muted", "grid", "good", "warn", "serious", "bad", "neutral")
_STAND_IN = {name: f"#0{i:x}e1d5" for i, name in enumerate(_NAMES)}
_DASH = {"solid": "-", "dashed": (0, (4, 2.5)), "dotted": (0, (1, 2))}
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_RC: Any = {
    "font.family": "DejaVu Sans",  # what matplotlib ships; the page puts its own in its place
    "font.size": 9.5,
    "svg.fonttype": "none",
    "axes.edgecolor": _STAND_IN["grid"],
    "axes.labelcolor": _STAND_IN["muted"],
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "grid.color": _STAND_IN["grid"],
    "grid.linewidth": 0.7,
    "text.color": _STAND_IN["ink"],
    "xtick.color": _STAND_IN["grid"],
    "ytick.color": _STAND_IN["grid"],
    "xtick.labelcolor": _STAND_IN["muted"],
    "ytick.labelcolor": _STAND_IN["muted"],
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "xtick.major.size": 3,
    "xtick.minor.size": 0,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
}

Dash = Literal["solid", "dashed", "dotted"]
Shape = Literal["line", "band", "block"]


@dataclass(frozen=True)
class Key:
    """One entry of a legend: a name, the colour's name, and how the mark looks."""

    label: str
    colour: str
    dash: Dash = "solid"
    shape: Shape = "line"


@dataclass(frozen=True)
class Drawing:
    """A finished plot: an `<svg>` element, its legend, and whether it needs the page's width."""

    svg: str
    legend: tuple[Key, ...]
    wide: bool = False


class Canvas:
    """A pair of axes to draw on.

    Args:
        description: what the plot shows, for readers who hear the page.
        x, y: names of the axes, with units.
        log_x, log_y: logarithmic axes.
        percent: y is a share of one, written in per cent.
        whole_x: x counts something; ticks are whole numbers.
        wide: as wide as the page, or half of it.
    """

    def __init__(
        self,
        description: str,
        x: str,
        y: str,
        *,
        log_x: bool = False,
        log_y: bool = False,
        percent: bool = False,
        whole_x: bool = False,
        wide: bool = False,
    ) -> None:
        self.description = description
        self._keys: list[Key] = []
        self._wide = wide
        with mpl.rc_context(_RC):
            self._figure = Figure(figsize=(11.9, 3.5) if wide else (5.6, 3.1), layout="constrained")
            self._axes = self._figure.add_subplot()
        axes = self._axes
        axes.grid(visible=False, axis="x")
        axes.set_xlabel(x)
        axes.set_title(y, loc="left", fontsize=9.5, color=_STAND_IN["muted"])
        axes.margins(x=0.02)
        if log_x:
            axes.set_xscale("log")
        elif whole_x:
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if log_y:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        elif percent:
            axes.yaxis.set_major_formatter(FuncFormatter(_percent))

    def line(
        self,
        x: Sequence[float],
        y: Sequence[float],
        colour: str,
        label: str | None = None,
        dash: Dash = "solid",
        marks: bool = True,
    ) -> None:
        """A line through the points; marks on them where they are few. NaN leaves a gap."""
        values = np.asarray(y, dtype=float)  # None, JSON's word for NaN, becomes NaN
        marker = "o" if marks and len(x) <= 16 else ""
        stand_in = _STAND_IN[colour]
        width = 2.0 if dash == "solid" else 1.6
        self._axes.plot(
            x, values, color=stand_in, ls=_DASH[dash], lw=width, marker=marker, markersize=4.5
        )
        self.key(label, colour, dash, "line")

    def band(
        self,
        x: Sequence[float],
        low: Sequence[float],
        high: Sequence[float],
        colour: str,
        label: str | None = None,
        alpha: float = 0.16,
    ) -> None:
        """The area between two curves."""
        edges = np.asarray([low, high], dtype=float)
        self._axes.fill_between(x, *edges, color=_STAND_IN[colour], alpha=alpha, lw=0)
        self.key(label, colour, "solid", "band")

    def shares(
        self,
        rows: Sequence[tuple[str, Sequence[float], Sequence[tuple[str, str, Sequence[float]]]]],
    ) -> None:
        """Rows of bars that stand on each other and fill their row when they add up to one.

        Args:
            rows: from the top: name, x, and (label, colour, shares) from the bottom.
        """
        for place, (_, x, shares) in enumerate(reversed(rows)):
            bottom = np.full(len(x), place - 0.4)
            for label, colour, values in shares:
                height = 0.8 * np.nan_to_num(np.asarray(values, dtype=float))
                self._axes.bar(x, height, bottom=bottom, width=0.82, color=_STAND_IN[colour], lw=0)
                bottom = bottom + height
                self.key(label, colour, shape="block")
        self._axes.set_yticks(range(len(rows)), [name for name, _, _ in reversed(rows)])
        self._axes.grid(visible=False)
        self._axes.set_ylim(-0.5, len(rows) - 0.5)
        self._axes.margins(x=0)
        self._figure.set_figheight(0.7 + 0.55 * len(rows))

    def level(self, y: float, text: str, colour: str = "muted") -> None:
        """A horizontal line at a value that means something, with its meaning written on it."""
        stand_in = _STAND_IN[colour]
        self._axes.axhline(y, color=stand_in, lw=1.1, ls=_DASH["dashed"])
        self._axes.annotate(
            text,
            (1, y),
            xycoords=self._axes.get_yaxis_transform(),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=8.5,
            color=_STAND_IN["muted"],
        )

    def ticks(self, x: Sequence[float]) -> None:
        """Ticks at exactly these places of the x axis, written as plain numbers."""
        self._axes.xaxis.set_major_locator(FixedLocator([float(value) for value in x]))
        self._axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        self._axes.xaxis.set_minor_formatter(NullFormatter())

    def limits(self, low: float | None = None, high: float | None = None) -> None:
        """Limits of the y axis; None leaves that end to the data."""
        self._axes.set_ylim(low, high)

    def finish(self) -> Drawing:
        """The SVG, without metadata, document type or any address."""
        if self._axes.get_yscale() == "log":
            self._label_decades()
        buffer = io.StringIO()
        with mpl.rc_context(_RC | {"svg.hashsalt": self.description}):
            self._figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        return Drawing(_inline(buffer.getvalue(), self.description), tuple(self._keys), self._wide)

    def _label_decades(self) -> None:
        """Powers of ten, and steps between them where there are few."""
        axis = self._axes.yaxis
        low, high = axis.get_view_interval()
        if high > 1000 * low:
            axis.set_major_formatter(FuncFormatter(_power_of_ten))
        else:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))

    def key(
        self, label: str | None, colour: str, dash: Dash = "solid", shape: Shape = "line"
    ) -> None:
        """An entry of the legend; each label once, None for no entry."""
        if label is not None and all(key.label != label for key in self._keys):
            self._keys.append(Key(label, colour, dash, shape))


def _inline(svg: str, description: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r"<!--.*?-->", "", svg, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    escaped = description.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    svg = re.sub(r"<svg[^>]*>", f'<svg {box[0]} role="img" aria-label="{escaped}">', svg, count=1)
    svg = re.sub(r"<style[^>]*>.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # the same in every plot; only <defs> are referred to
    svg = re.sub(r"\s*\n\s*", " ", svg)
    for name, stand_in in _STAND_IN.items():
        svg = svg.replace(stand_in, f"var(--{name})")
    return svg


def _power_of_ten(value: float, _position: int) -> str:
    exponent = round(np.log10(value)) if value > 0 else 0
    if not np.isclose(value, 10.0**exponent):
        return ""
    return "1" if exponent == 0 else "10" + str(exponent).translate(_SUPERSCRIPT)


def _percent(value: float, _position: int) -> str:
    return f"{100 * value:.4g} %"
