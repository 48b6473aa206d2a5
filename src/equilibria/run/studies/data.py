"""The rows of a study as its views read them: one tidy table, and the requested grid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

__all__ = ["Data", "Frame", "key", "select", "written"]

Frame = Any
"""A pandas.DataFrame; the types that a checker infers for its methods are unions of everything."""


@dataclass(frozen=True)
class Data:
    """What was measured of a study.

    Attributes:
        rows: every row, with the factors of its point as the grid has them; figures of the point as
            a whole stand in its first row alone.
        points: one row for each point of the grid, in its order, with the columns of the point's
            first row, and `done`, whether it was measured.
        factors: names of the columns that tell points apart.
    """

    rows: Frame
    points: Frame
    factors: Sequence[str]

    @classmethod
    def of(cls, rows: Frame, factors: Sequence[Mapping[str, Any]]) -> Data:
        """Join the rows to the grid; those of other points than the grid's are left out.

        Args:
            rows: as `results.read` gives them.
            factors: of all points, in the order of the grid.
        """
        keys = list(dict.fromkeys(name for each in factors for name in each))
        rows = rows.reindex(columns=[*keys, *(c for c in rows.columns if c not in keys)])
        wanted = pd.DataFrame([dict(each) for each in factors], columns=pd.Index(keys))
        place = {key(each, keys): number for number, each in enumerate(factors)}
        at = [place.get(key(row, keys)) for row in rows[keys].to_dict("records")]
        rows = rows.assign(_at=pd.array(at, dtype="Int64")).dropna(subset=["_at"])
        rows = rows.sort_values("_at", kind="stable")
        # A file holds text: next to "all", 1 would be read as "1", and "1" alone as 1.
        rows[keys] = wanted.loc[rows["_at"].tolist()].set_axis(rows.index)
        heads = rows.drop_duplicates("_at").set_index("_at")
        points = wanted.join(heads.drop(columns=keys))
        points["done"] = points.index.isin(heads.index)
        return cls(rows.drop(columns="_at").reset_index(drop=True), points, keys)

    def get(self, **factors: Any) -> Any:
        """Return the figures of a point as a whole; None where it was not run."""
        found = select(self.points, factors)
        found = found[found["done"]]
        return None if found.empty else found.iloc[0]

    def series(self, index: str, **factors: Any) -> Frame:
        """Return the rows of some points that have a column `index`, such as one an epoch."""
        if index not in self.rows:
            return self.rows.iloc[:0].assign(**{index: []})
        found = select(self.rows, factors)
        return found[found[index].notna()]


def select(frame: Frame, where: Mapping[str, Any]) -> Frame:
    """Return the rows whose columns have these values; a list or tuple names several."""
    for name, value in where.items():
        if name not in frame:
            return frame.iloc[:0]
        several = list(value) if isinstance(value, list | tuple) else [value]
        frame = frame[frame[name].isin(several)]
    return frame


def key(row: Mapping[str, Any], names: Sequence[str]) -> tuple[str, ...]:
    """Return a point's factors as text, alike in the grid and as a file is read.

    1 and 1.0 are one level, as are floats that agree in nine digits; a factor that it lacks is "".
    """
    return tuple(_level(row.get(name)) for name in names)


def _level(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    try:
        number = float(value)
    except (TypeError, ValueError):
        return written(value)
    return "" if math.isnan(number) else written(number)


def written(value: Any) -> str:
    """Return a figure as a file has it: a line of text, "" for None, NaN and infinity by name.

    Nine digits of a float tell apart those of 32 bits.
    """
    if value is None or value is pd.NA:
        return ""
    if isinstance(value, float):
        whole = math.isfinite(value) and value == int(value) and abs(value) < 2**53
        return str(int(value)) if whole else f"{value:.9g}"
    return " ".join(str(value).splitlines())
