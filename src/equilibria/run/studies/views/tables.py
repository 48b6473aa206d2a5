"""Tables of a study's rows, described by the columns that they show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pandas as pd

from equilibria.run.report.panel import Panel
from equilibria.run.report.surfaces import SurfacePlot
from equilibria.run.studies.results import Data, Frame, select

# --- view -----------------------------------------------------------------------------------------

# What every view of a study's rows can do.


class View(Protocol):
    """A table or a chart of a study's rows."""

    def render(self, data: Data, /) -> Grid | Panel | SurfacePlot:
        """Render it from what was measured, possibly nothing."""
        ...


@dataclass(frozen=True)
class Derived:
    """A view of rows to which columns are added, such as the ratio to another row.

    Args:
        derive: measured rows -> those that the view shows.
        view: a table or a chart.
    """

    derive: Callable[[Data], Frame]
    view: View

    def render(self, data: Data, /) -> Grid | Panel | SurfacePlot:
        """Render the view."""
        return self.view.render(replace(data, rows=self.derive(data)))


# --- columns --------------------------------------------------------------------------------------

# How a group of a study's rows is summarised in a cell of a table.


NOT_RUN = "not run"
"""Marks a figure of ours that has not been measured yet."""

DIVERGED = "diverged"
"""Marks a figure that is missing because the training diverged."""

Cell = str | int | float | None

Column = Callable[[Frame], Cell]
"""Rows of a group, at least one of them measured -> a cell."""


def _list_known(rows: Frame, column: str) -> list[Any]:
    return [] if column not in rows else rows[column].dropna().tolist()


def first(column: str, scale: float = 1) -> Column:
    """The figure of the first row that has it."""

    def cell(rows: Frame) -> Cell:
        known = _list_known(rows, column)
        if not known:
            return None
        return known[0] if isinstance(known[0], str) or scale == 1 else scale * known[0]

    return cell


def last(column: str, scale: float = 1) -> Column:
    """The figure of the last row that has it."""
    return lambda rows: first(column, scale)(rows.iloc[::-1])


def _statistic(
    of: Callable[[list[float]], float], column: str, scale: float, where: Mapping[str, Any]
) -> Column:
    def cell(rows: Frame) -> Cell:
        known = _list_known(select(rows, where), column)
        return scale * of(known) if known else None

    return cell


def mean(column: str, scale: float = 1, **where: Any) -> Column:
    """The mean over the rows that have the figure."""
    return _statistic(statistics.fmean, column, scale, where)


def median(column: str, scale: float = 1, **where: Any) -> Column:
    """The median over the rows that have the figure."""
    return _statistic(statistics.median, column, scale, where)


def largest(column: str, scale: float = 1, **where: Any) -> Column:
    """The maximum over the rows that have the figure."""
    return _statistic(max, column, scale, where)


def smallest(column: str, scale: float = 1, **where: Any) -> Column:
    """The minimum over the rows that have the figure."""
    return _statistic(min, column, scale, where)


def spread(column: str, scale: float = 1, spec: str = ".1f") -> Column:
    """Mean ± standard deviation in words, the mean alone of one row; or that all diverged."""

    def cell(rows: Frame) -> Cell:
        words = mean_and_deviation([scale * each for each in _list_known(rows, column)], spec)
        return words or (DIVERGED if _list_known(rows, "diverged") else None)

    return cell


def mean_and_deviation(values: Sequence[float], spec: str = ".1f") -> str | None:
    """Return mean ± standard deviation in words; None of no values."""
    if not values:
        return None
    whole = format(statistics.fmean(values), spec)
    return whole if len(values) == 1 else f"{whole} ± {statistics.stdev(values):{spec}}"


def count(column: str) -> Column:
    """How many of the group's rows have the figure: `2 of 3`."""
    return lambda rows: f"{len(_list_known(rows, column))} of {len(rows)}"


def number(column: str) -> Column:
    """How many of the group's rows have the figure: `2`."""
    return lambda rows: int(rows[column].count())


def of(column: str, scale: float = 1, spec: str | None = None, **where: Any) -> Column:
    """The figure of one point of the group, or why there is none: not run, or diverged.

    Args:
        column: of the figure.
        scale: factor of it.
        spec: of `str.format`, such as `"{:.1f} MiB"`; None for the number.
        **where: factors of the point; a group without such a point has no figure.
    """

    def cell(rows: Frame) -> Cell:
        rows = select(rows, where)
        if (found := first(column, scale)(rows)) is not None:
            return found if spec is None else spec.format(found)
        if not rows["done"].all():
            return NOT_RUN
        return DIVERGED if _list_known(rows, "diverged") else None

    return cell


def ratio(one: Column, other: Column, spec: str | None = None, absent: Cell = None) -> Column:
    """One figure over another, or why there is none: either is not run, or diverged.

    Args:
        one: numerator.
        other: denominator.
        spec: of `str.format`, such as `"{:.2f}x"`; None for the number.
        absent: stands where only the other has such a figure.
    """

    def cell(rows: Frame) -> Cell:
        figures: list[Any] = [one(rows), other(rows)]
        for reason in (NOT_RUN, DIVERGED, None):
            if reason in figures:
                return reason if reason or figures[1] is None else absent
        value = figures[0] / figures[1]
        return value if spec is None else spec.format(value)

    return cell


def time_ratio(one: Mapping[str, Any], other: Mapping[str, Any], spec: str | None = None) -> Column:
    """Seconds of all steps of one training over another's; none under different conditions.

    Args:
        one: factors of the point.
        other: of that which it is compared with.
        spec: as `ratio` takes it.
    """
    seconds = ratio(of("seconds", **one), of("seconds", **other), spec)

    def cell(rows: Frame) -> Cell:
        pair = [select(rows, each) for each in (one, other)]
        if any(_list_known(each, "diverged") for each in pair):
            return DIVERGED
        conditions = {of("conditions")(each) for each in pair}
        return seconds(rows) if len(conditions) == 1 or NOT_RUN in conditions else None

    return cell


# --- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A table, ready to be shown.

    Attributes:
        title: what it shows.
        columns: a heading for each column, with its unit.
        rows: cells; None is shown as a dash.
        note: what a reader must know to judge the figures.
        lead: columns at the left that say what a row is.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    lead: int = 1


def text(cell: Cell) -> str:
    """Return a cell as tables show it: four digits of a float, a dash for none."""
    if cell is None or cell is pd.NA:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return str(cell)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table whose rows a function computes.

    Args:
        title: what it shows.
        columns: a heading for each column, with its unit.
        rows: the measured rows -> cells; None is shown as a dash.
        note: what a reader must know to judge the figures.
    """

    title: str
    columns: Sequence[str]
    rows: Callable[[Data], Iterable[Sequence[Any]]]
    note: str = ""

    def render(self, data: Data, /) -> Grid:
        """Return the table, missing cells filled up at the right."""
        rows = [_pad([_cell(each) for each in row], len(self.columns)) for row in self.rows(data)]
        return Grid(title=self.title, columns=self.columns, rows=rows, note=self.note)


@dataclass(frozen=True, kw_only=True)
class Pivot:
    """A row for each group of points, or of rows; its cells summarise the group.

    Levels are in the order of the grid, those of the first name outermost. A group without measured
    points is marked as not run.

    Args:
        title: what it shows.
        index: factors or columns that make a group, with their headings.
        values: headings -> name of a column, or what a group's rows come to.
        across: factor whose levels stand side by side; headings are then templates such as
            `"{level}: residual"`.
        where: values that factors must have.
        each: a column such as `epoch`: groups are of the rows that have it, not of points;
            a point that was not run is a row of its own.
        whole: a group's rows are all those of its points, and not the first of each alone.
        words: factor -> level -> what a reader is told, or what the group's rows come to.
        above: rows that come first, such as published ones.
        note: what a reader must know to judge the figures.
    """

    title: str
    index: Mapping[str, str]
    values: Mapping[str, str | Column]
    across: str | None = None
    where: Mapping[str, Any] = field(default_factory=dict)
    each: str | None = None
    whole: bool = False
    words: Mapping[str, Mapping[Any, Cell] | Column] = field(default_factory=dict)
    above: Sequence[Sequence[Any]] = ()
    note: str = ""

    def render(self, data: Data, /) -> Grid:
        """Group the rows and draw up the table."""
        if self.each is None:
            frame = select(data.points, self.where)
            if self.whole:
                further = data.rows[data.rows.duplicated(list(data.factors))]
                frame = pd.concat([frame, select(further, self.where).assign(done=True)])
        else:
            absent = data.points[~data.points["done"]].dropna(axis=1, how="all")
            where = {name: each for name, each in self.where.items() if name in data.factors}
            found = data.series(self.each, **self.where).assign(done=True)
            if len(absent) and (found.empty or set(data.factors) & {*self.index}):
                found = pd.concat([found, select(absent, where)])
            frame = found
        levels: list[Any] = [None]
        if self.across is not None:
            levels = frame[self.across].dropna().unique().tolist() if self.across in frame else []
            words: Any = self.words.get(self.across, ())
            levels = levels or list(words)  # of nothing measured, those that have words
        rows: list[list[Any]] = [list(row) for row in self.above]
        names = list(self.index)
        frame = frame.assign(**{name: None for name in names if name not in frame})
        groups: Any = frame.groupby(names, sort=False, dropna=False) if len(frame) else ()
        for key, group in sorted(groups, key=_outermost_first(frame, names[:-1])):
            head = [self._word(n, level, group) for n, level in zip(names, key, strict=True)]
            cells: list[Any] = []
            for level in levels:
                part = group if level is None else select(group, {str(self.across): level})
                cells += self._cells(part)
            rows.append([*head, *cells])
        headings = [
            heading.format(level=self._word(self.across or "", level))
            for level in levels
            for heading in self.values
        ]
        columns = [*self.index.values(), *headings]
        shown = [[_cell(each) for each in row] for row in rows]
        shown = [row if any(each is not None for each in row) else [NOT_RUN] for row in shown]
        padded = [_pad(row, len(columns)) for row in shown]
        lead = len(self.index)
        return Grid(title=self.title, columns=columns, rows=padded, note=self.note, lead=lead)

    def _word(self, name: str, level: Any, group: Frame = None) -> Any:
        words = self.words.get(name, {})
        return words(group) if callable(words) else words.get(level, level)

    def _cells(self, group: Frame) -> list[Any]:
        if not group["done"].any():
            return [NOT_RUN, *[None] * (len(self.values) - 1)]
        # A count is of all points that were asked for; a figure is of those that were measured.
        return [
            (first(value) if isinstance(value, str) else value)(group)
            for value in self.values.values()
        ]


def _outermost_first(frame: Frame, names: Sequence[str]) -> Callable[[tuple[Any, Frame]], Any]:
    """A sort key of groups: a grid that runs seed by seed is shown network by network."""
    ranks = [{level: rank for rank, level in enumerate(frame[name].unique())} for name in names]
    return lambda group: [rank.get(level, 0) for rank, level in zip(ranks, group[0], strict=False)]


def _pad(row: list[Any], width: int) -> list[Any]:
    return [*row, *[None] * (width - len(row))]


def _cell(value: Any) -> Cell:
    """A figure as Python's own; NaN, which stands for an absent one in a frame, as None."""
    if value is None or value is pd.NA:
        return None
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and math.isnan(value) else value
