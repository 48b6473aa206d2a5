"""How a group of a study's rows is summarised in a cell of a table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from equilibria.run.studies.data import Frame, select

__all__ = [
    "DIVERGED",
    "NOT_RUN",
    "Cell",
    "Column",
    "count",
    "first",
    "largest",
    "last",
    "mean",
    "mean_and_deviation",
    "median",
    "of",
    "ratio",
    "smallest",
    "spread",
    "time_ratio",
]

NOT_RUN = "not run"
"""Marks a figure of ours that has not been measured yet."""

DIVERGED = "diverged"
"""Marks a figure that is missing because the training diverged."""

Cell = str | int | float | None

Column = Callable[[Frame], Cell]
"""Rows of a group, at least one of them measured -> a cell."""


def _known(rows: Frame, column: str) -> list[Any]:
    return [] if column not in rows else rows[column].dropna().tolist()


def first(column: str, scale: float = 1) -> Column:
    """The figure of the first row that has it."""

    def cell(rows: Frame) -> Cell:
        known = _known(rows, column)
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
        known = _known(select(rows, where), column)
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
        words = mean_and_deviation([scale * each for each in _known(rows, column)], spec)
        return words or (DIVERGED if _known(rows, "diverged") else None)

    return cell


def mean_and_deviation(values: Sequence[float], spec: str = ".1f") -> str | None:
    """Return mean ± standard deviation in words; None of no values."""
    if not values:
        return None
    whole = format(statistics.fmean(values), spec)
    return whole if len(values) == 1 else f"{whole} ± {statistics.stdev(values):{spec}}"


def count(column: str) -> Column:
    """How many of the group's rows have the figure: `2 of 3`."""
    return lambda rows: f"{len(_known(rows, column))} of {len(rows)}"


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
        return DIVERGED if _known(rows, "diverged") else None

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
        if any(_known(each, "diverged") for each in pair):
            return DIVERGED
        conditions = {of("conditions")(each) for each in pair}
        return seconds(rows) if len(conditions) == 1 or NOT_RUN in conditions else None

    return cell
