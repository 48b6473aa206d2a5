"""What the figures of Bai et al. 2021 show of trainings: residuals and Jacobian, by epoch."""

from __future__ import annotations

from typing import Any

from equilibria.experiments.data import Frame
from equilibria.experiments.views import DIVERGED, Cell, Chart, Lines, first, last
from equilibria.experiments.views.columns import Column


def final(*columns: str, scale: float = 1) -> Column:
    """The last epoch's figure, of the first column that has one, or when the training diverged."""

    def cell(rows: Frame) -> Cell:
        if first("diverged")(rows) is None:
            found = (last(name, scale)(rows) for name in columns)
            return next((each for each in found if each is not None), None)
        return DIVERGED if first("epoch")(rows) else "diverged in the first epoch"

    return cell


def course(title: str, x: str, y: str, *, zero: bool = False, **options: Any) -> Chart:
    """A column over the training, a line for each network."""
    lines = Lines(x=x, y=y, by=["network"], style="marked", **options)
    return Chart(title=title, x=x, y="", marks=lines, whole_x=True, log_y=not zero, zero=zero)


def against_norm(figure: str, y: str = "", **options: Any) -> Chart:
    """The forward residual against the Jacobian's norm, a point for each epoch."""
    points = {"x": "probe_norm", "y": "probe_forward", "merge": None, "style": "points"}
    return Chart(
        title=f"{figure}: forward residual against ||J||² / d",
        x="||J||² / d",
        y=y,
        marks=Lines(by=["network"], **points, **options),
        log_x=True,
        log_y=True,
    )
