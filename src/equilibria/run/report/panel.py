"""A panel as data: axes, and the series that are drawn on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Numbers = Sequence[float | None]
Style = Literal["line", "marked", "dashed", "dotted", "points", "rings", "bars", "blocks", "band"]


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points under one name; those that are None or not finite are left out.

    Args:
        label: in the legend; empty for none. A series without x is in the legend alone.
        x: where the points are.
        y: their heights; none of blocks or a band.
        low, high: edges of a band around a line; ends of what blocks or a band fill.
        color: index into the palette, or a name of the style sheet; None for the next one.
        style: a line, perhaps with its points marked, dashed or dotted; points or rings alone;
            bars, beside those of the panel's other series; a block at each x; a band alone.
    """

    label: str
    x: Numbers = ()
    y: Numbers = ()
    low: Numbers = ()
    high: Numbers = ()
    color: int | str | None = None
    style: Style = "line"


@dataclass(frozen=True, kw_only=True)
class PlotAxes:
    """A pair of axes.

    Args:
        title: what it shows.
        x, y: names of the axes, with units.
        log_x, log_y: logarithmic axes.
        whole_x: x counts something.
        ticks_x: x has its ticks where there are points.
        percent: y is a share of one, written in per cent.
        zero: y begins at 0.
        names: labels at x = 0, 1, 2, ..., in place of these numbers.
        span_x, span_y: ends of an axis; None for what the series reach.
    """

    title: str
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    whole_x: bool = False
    ticks_x: bool = False
    percent: bool = False
    zero: bool = False
    names: Sequence[str] = ()
    span_x: tuple[float, float] | None = None
    span_y: tuple[float, float] | None = None


@dataclass(frozen=True, kw_only=True)
class Panel(PlotAxes):
    """Axes with what is drawn on them.

    Args:
        series: a panel that has no point of any says that nothing was run.
        levels: heights of horizontal rules, such as a published figure, by what they are.
        bands: lower and upper ends of heights that are shaded.
        names_y: labels at y = 0, 1, 2, ..., from the top; `levels` are then vertical rules
            without a label.
    """

    series: Sequence[Series]
    levels: Sequence[tuple[str, float]] = ()
    bands: Sequence[tuple[float, float]] = ()
    names_y: Sequence[str] = ()
