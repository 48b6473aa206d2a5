"""Tables of a study's rows, described by the columns that they show."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from equilibria.run.studies.data import Data, Frame, select
from equilibria.run.studies.views.columns import NOT_RUN, Cell, Column, first

__all__ = ["Grid", "Pivot", "Table", "text"]


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
        rows = [
            _padded([_cell(each) for each in row], len(self.columns)) for row in self.rows(data)
        ]
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
            head = [self._said(n, level, group) for n, level in zip(names, key, strict=True)]
            cells: list[Any] = []
            for level in levels:
                part = group if level is None else select(group, {str(self.across): level})
                cells += self._cells(part)
            rows.append([*head, *cells])
        headings = [
            heading.format(level=self._said(self.across or "", level))
            for level in levels
            for heading in self.values
        ]
        columns = [*self.index.values(), *headings]
        shown = [[_cell(each) for each in row] for row in rows]
        shown = [row if any(each is not None for each in row) else [NOT_RUN] for row in shown]
        padded = [_padded(row, len(columns)) for row in shown]
        lead = len(self.index)
        return Grid(title=self.title, columns=columns, rows=padded, note=self.note, lead=lead)

    def _said(self, name: str, level: Any, group: Frame = None) -> Any:
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


def _padded(row: list[Any], width: int) -> list[Any]:
    return [*row, *[None] * (width - len(row))]


def _cell(value: Any) -> Cell:
    """A figure as Python's own; NaN, which stands for an absent one in a frame, as None."""
    if value is None or value is pd.NA:
        return None
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and math.isnan(value) else value
