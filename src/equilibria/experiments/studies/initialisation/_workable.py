"""Which trainings end near the best of all, and up to which scale of the weights they do."""

from __future__ import annotations

import itertools

from equilibria.experiments.data import Data, Frame
from equilibria.experiments.studies.initialisation._ensembles import COLOURS, PAPER
from equilibria.experiments.views import NOT_RUN, Cell
from equilibria.experiments.views.columns import Column
from equilibria.nn.init import Ensemble
from equilibria.report.panel import Series

__all__ = ["SHARE", "above", "compared", "predicted", "workable"]

SHARE = 0.9
"""A scale is workable if so many of its trainings work."""


def compared(data: Data) -> Frame:
    """Return the rows and, beside each test error, its `ratio` to the best median, and `critical`.

    The latter is the scale from which on plain iteration does not converge, by theory.
    """
    if "seed" not in data.rows:
        return data.rows
    best = data.rows.groupby(["solver", "ensemble", "scale"])["error"].median().min()
    critical = data.rows["ensemble"].map(_critical(data))
    return data.rows.assign(ratio=data.rows["error"] / best, critical=critical)


def _critical(data: Data) -> dict[Ensemble, float]:
    start = data.get(what="start")
    return {} if start is None else {name: start[f"critical_{name}"] for name in PAPER}


def above(factor: float) -> Column:
    """How many trainings end above so many times the best median."""
    return lambda rows: int((rows["ratio"] > factor).sum())


def workable(factor: float) -> Column:
    """Up to which scale trainings end within so many times the best median.

    The first scale from which too few do ends the range, though some beyond it may work again.
    """

    def cell(rows: Frame) -> Cell:
        if not rows["done"].all():
            return NOT_RUN
        works = (rows["ratio"] <= factor).groupby(rows["scale"]).mean() >= SHARE
        run = list(itertools.takewhile(works.get, works.index))
        return f"up to {run[-1]:g}" if run else "none"

    return cell


def predicted(solver: str, data: Data) -> list[Series]:
    """Return a short vertical rule at the critical scale of each ensemble that was measured."""
    measured = set(data.series("seed", solver=solver)["ensemble"])
    return [
        Series(
            label="predicted V*" if name == "gaussian" else "",
            x=[critical, critical],
            y=[5, 8],
            colour=COLOURS[name],
            style="marked",
        )
        for name, critical in _critical(data).items()
        if name in measured
    ]
