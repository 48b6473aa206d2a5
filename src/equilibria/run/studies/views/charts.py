"""Charts of a study's rows, described by the columns that they show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Literal

from equilibria.run.report.panel import Panel, PlotAxes, Series, Style
from equilibria.run.studies.results import Data, Frame

Mark = Callable[[Data], Iterable[Series]]
"""What a chart draws of the measured rows."""


class Marks:
    """What a chart draws, such as lines or bars."""

    def __call__(self, data: Data) -> list[Series]:
        """Return the series."""
        raise NotImplementedError

    def chart(self, title: str, x: str, y: str, **options: Any) -> Chart:
        """Return a chart of these marks alone; `options` are further fields of `Chart`."""
        return Chart(title=title, x=x, y=y, marks=self, **options)


@dataclass(frozen=True)
class Lines(Marks):
    """A line for each level of some factors, through the rows that have x and y.

    Rows at the same x, such as those of several seeds, are merged to their mean or median, and the
    band is their range unless `low` and `high` name columns.

    Args:
        x: column of the horizontal axis.
        y: column of the vertical axis, or several, each a line.
        by: factors whose levels are lines; empty for one line.
        where: values that factors must have.
        label: levels of `by`, and the column -> what the legend says; a mapping is of the last
            level, or of the column where several are drawn; "" for no entry.
        merge: what rows at the same x come to; None for points apart.
        low, high: columns of the band's edges.
        band: shade the range of the rows at the same x.
        scale: factor of y and the band.
        style: of the lines, or one for each level of the last factor.
        colors: index into the palette for each level of the last factor; None for one after the
            other.
    """

    x: str
    y: str | Sequence[str]
    _: KW_ONLY
    by: Sequence[str] = ()
    where: Mapping[str, Any] = field(default_factory=dict)
    label: Mapping[Any, str] | Callable[..., str] | str | None = None
    merge: Literal["mean", "median"] | None = "mean"
    low: str | None = None
    high: str | None = None
    band: bool = False
    scale: float = 1
    style: Style | Mapping[Any, Style] = "line"
    colors: Mapping[Any, int] | int | None = None

    def __call__(self, data: Data) -> list[Series]:
        """Return the lines."""
        columns = [self.y] if isinstance(self.y, str) else list(self.y)
        found: list[Series] = []
        for place, column in enumerate(columns):
            frame = data.series(self.x, **self.where)
            frame = frame[frame[column].notna()] if column in frame else frame.iloc[:0]
            if frame.empty:
                continue
            groups = frame.groupby(list(self.by), sort=False) if self.by else [((), frame)]
            for number, (key, group) in enumerate(groups):
                level = key[-1] if key else column
                color = place if not self.by else number if len(columns) == 1 else None
                found.append(self._line(group, column, key, level, color))
        return found

    def _line(self, rows: Frame, column: str, key: Any, level: Any, color: int | None) -> Series:
        low: list[Any] = []
        high: list[Any] = []
        if self.merge is None:
            x, y = rows[self.x].tolist(), (self.scale * rows[column]).tolist()
        else:
            groups = rows.groupby(self.x, sort=True)
            y = (self.scale * groups[column].agg(self.merge)).tolist()
            x = list(groups.groups)
            if self.low and self.high:
                low = (self.scale * groups[self.low].agg(self.merge)).tolist()
                high = (self.scale * groups[self.high].agg(self.merge)).tolist()
            elif self.band and groups.size().max() > 1:
                low = (self.scale * groups[column].min()).tolist()
                high = (self.scale * groups[column].max()).tolist()
        if isinstance(self.colors, Mapping):
            color = self.colors.get(level, color)
        elif self.colors is not None:
            color = self.colors
        style = self.style.get(level, "line") if isinstance(self.style, Mapping) else self.style
        return Series(
            label=self._label(key, level, column),
            x=x, y=y, low=low, high=high, color=color, style=style,
        )  # fmt: skip

    def _label(self, key: Any, level: Any, column: str) -> str:
        if callable(self.label):
            return self.label(*key, column) if not isinstance(self.y, str) else self.label(*key)
        if isinstance(self.label, Mapping):
            return self.label.get(level, self.label.get(column, str(level)))
        return str(level) if self.label is None else self.label


@dataclass(frozen=True, kw_only=True)
class Bars(Marks):
    """A bar at each place, side by side for the levels of a factor.

    Args:
        at: factor or column whose levels are the places 0, 1, 2, ...; the chart names them.
        places: its levels.
        y: column of the heights.
        by: factor whose levels stand side by side.
        label: what the legend says of its levels.
        where: values that factors must have.
        merge: what rows at one place come to: their mean, median or max.
        scale: factor of y.
    """

    at: str
    places: Sequence[Any]
    y: str
    by: str | None = None
    label: Mapping[Any, str] = field(default_factory=dict)
    where: Mapping[str, Any] = field(default_factory=dict)
    merge: Literal["mean", "median", "max"] = "mean"
    scale: float = 1

    def __call__(self, data: Data) -> list[Series]:
        """Return a series for each level, with the places that were measured."""
        rows = data.series(self.y, **self.where)
        if rows.empty:
            return []
        groups = [("", rows)] if self.by is None else rows.groupby(self.by, sort=False)
        found: list[Series] = []
        for level, group in groups:
            heights = self.scale * group.groupby(self.at)[self.y].agg(self.merge)
            known = [place for place in self.places if place in heights]
            found.append(
                Series(
                    label=self.label.get(level, str(level)),
                    x=[self.places.index(place) for place in known],
                    y=[float(heights[place]) for place in known],
                    style="bars",
                )
            )
        return found


def curve(
    label: str,
    at: Sequence[float],
    y: Callable[[float], float | None],
    x: Callable[[float], float | None] | None = None,
    *,
    color: int = 7,
    style: Style = "dashed",
) -> Callable[[Data], list[Series]]:
    """A function, such as a prediction, drawn alongside measurements, and only if there are any.

    Args:
        label: in the legend.
        at: where it is evaluated.
        y: height at each.
        x: horizontal position, where `at` is another parameter: a curve (x(t), y(t)), or, x being
            constant, a vertical rule.
        color, style: of the line.
    """

    def mark(data: Data) -> list[Series]:
        if not data.points["done"].any():
            return []
        places = at if x is None else [x(each) for each in at]
        heights = [y(each) for each in at]
        return [Series(label=label, x=places, y=heights, color=color, style=style)]

    return mark


@dataclass(frozen=True, kw_only=True)
class Chart(PlotAxes):
    """A pair of axes.

    Args:
        marks: what is drawn: `Lines`, `Bars` or a function of the measured rows, or several.
        levels: labelled heights of horizontal rules, or a function of the rows.
        names_y: labels at y = 0, 1, 2, ..., from the top, or a function of the rows; `levels` are
            then vertical.
    """

    marks: Mark | Sequence[Mark]
    levels: Sequence[tuple[str, float]] | Callable[[Data], Sequence[tuple[str, float]]] = ()
    names_y: Sequence[str] | Callable[[Data], Sequence[str]] = ()

    def render(self, data: Data, /) -> Panel:
        """Return the panel with its series."""
        marks = [self.marks] if callable(self.marks) else self.marks
        return Panel(
            **{each.name: getattr(self, each.name) for each in fields(PlotAxes)},
            series=[series for mark in marks for series in mark(data)],
            levels=self.levels(data) if callable(self.levels) else self.levels,
            names_y=self.names_y(data) if callable(self.names_y) else self.names_y,
        )
