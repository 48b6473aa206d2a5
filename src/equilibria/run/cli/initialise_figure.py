"""The figure of `equilibria initialise`: radius, convergence and evaluations against the scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from equilibria.run.report.panel import Panel, Series
from equilibria.stability.ensembles import Start, Sweep
from equilibria.stability.ensembles.choice import AIM

__all__ = ["panels"]


def panels(found: Sweep) -> list[Panel]:
    """Three panels: the spectral radius with its prediction, the shares, the evaluations.

    A radius has a band from the mean to the largest, and is left out where so few samples converge
    that it would only be that of the survivors.

    Args:
        found: what a sweep has measured.
    """
    radii = _lines(
        found,
        lambda start: start.radius if start.workable else None,
        lambda start: start.predicted,
        lambda start: start.largest if start.workable else None,
    )
    shares = _lines(found, lambda start: start.converged, lambda start: start.plain_converged)
    evals = _lines(found, lambda start: start.evals, lambda start: start.plain_evals)
    panel = partial(Panel, x="scale sqrt(V)", log_x=True)
    compared = f"{found.solver} (points), plain iteration (dashed)"
    return [
        panel(
            title=f"measured (points), predicted (dashed); grey: {AIM[0]} to {AIM[1]}",
            y="spectral radius of J at z*",
            series=radii,
            zero=True,
            bands=(AIM,),
            levels=(("1", 1.0),),
        ),
        panel(title=compared, y="share of samples converged", series=shares, span_y=(-0.03, 1.03)),
        panel(title=compared, y="evaluations per sample", series=evals, zero=True),
    ]


Figure = Callable[[Start], float | None]


def _lines(found: Sweep, own: Figure, other: Figure, high: Figure | None = None) -> list[Series]:
    """For each ensemble a line with a band up to `high`, and a dashed one to compare it with."""
    series: list[Series] = []
    for colour, name in enumerate(found.ensembles):
        starts = found.of(name)
        line = partial(Series, x=[start.scale for start in starts], colour=colour)
        y = [own(start) for start in starts]
        band: Any = {"low": y, "high": [high(start) for start in starts]} if high else {}
        series.append(line(label=name, y=y, style="marked", **band))
        series.append(line(label="", y=[other(start) for start in starts], style="dashed"))
    return series
