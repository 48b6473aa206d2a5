"""What the benchmarks share: rows with the figures of their problem, and views of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from equilibria.experiments.data import Data, Frame
from equilibria.experiments.views import Cell, Chart, Derived, Lines, Pivot
from equilibria.experiments.views.columns import Column

__all__ = ["PEERS", "dots", "filled", "geometric", "pivot", "scientific"]

PEERS = ("torchdeq", "scipy")


def filled(data: Data, index: str, columns: Sequence[str], of_problem: Sequence[str]) -> Frame:
    """Return the row of each contestant on each problem, with what its tables need.

    Args:
        data: of the study.
        index: column that names a contestant.
        columns: that there are in any case, be it without a figure.
        of_problem: those that stand in a problem's first row, and here in all of its rows.

    Returns:
        `problem` is the whole point in words; `place` and `rank` number problem and contestant.
    """
    rows = data.series(index)
    names = [*data.factors, index, *columns, *of_problem]
    rows = rows.reindex(columns=list(dict.fromkeys([*names, *rows])))
    rows["problem"] = rows[data.factors].astype(str).agg(", ".join, axis=1) if len(rows) else ""
    rows["place"], rows["rank"] = (rows[name].factorize()[0] for name in ("problem", index))
    for name in of_problem:
        rows[name] = rows.groupby("problem", sort=False)[name].transform("first")
    return rows


def pivot(derive: Callable[[Data], Frame], **options: Any) -> Derived:
    """A pivot table of derived rows."""
    return Derived(derive, Pivot(**options))


def dots(
    derive: Callable[[Data], Frame],
    *marks: Mapping[str, Any],
    names: str,
    level: float | None = None,
    **options: Any,
) -> Derived:
    """A chart of derived rows: points in a line for each level of a column, names at its left.

    Args:
        derive: measured rows -> those that are shown.
        marks: options of `Lines`, x and y among them.
        names: column whose levels are named.
        level: of a vertical rule.
        options: of the chart.
    """
    return Derived(
        derive,
        Chart(
            y="",
            marks=[Lines(**{"merge": None, "style": "points", **mark}) for mark in marks],
            names_y=lambda data: data.rows[names].unique().tolist(),
            levels=[] if level is None else [("", level)],
            **options,
        ),
    )


def geometric(column: str) -> Column:
    """exp of the mean logarithm over the rows that have the figure."""

    def cell(rows: Frame) -> Cell:
        known = rows[column].dropna().tolist()
        return math.exp(sum(map(math.log, known)) / len(known)) if known else None

    return cell


def scientific(column: str) -> Column:
    """A small number with two digits."""
    return lambda rows: (
        None if rows[column].isna().all() else f"{rows[column].dropna().iloc[0]:.1e}"
    )
