"""The figure of `equilibria initialise`: radius, convergence and evaluations against the scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from equilibria.experiments.draw import Panel, Series
from equilibria.stability.ensembles import Start, Sweep
from equilibria.stability.ensembles.choice import AIM

__all__ = ["panels"]

_AXIS = "scale sqrt(V)"


def panels(found: Sweep) -> list[Panel]:
    """Three panels: the spectral radius over its prediction, the shares, the evaluations.

    A radius has a band from the mean to the largest, and is left out where so few samples converge
    that it is of the survivors.

    Args:
        found: what a sweep has measured.
    """
    low, high = AIM
    return [
        Panel(
            title=f"measured (points), predicted (dashed); grey: {low} to {high}",
            x=_AXIS,
            y="spectral radius of J at z*",
            series=list(_radii(found)),
            log_x=True,
            zero=True,
            bands=((low, high),),
            levels=(("1", 1.0),),
        ),
        Panel(
            title=f"{found.solver} (points), plain iteration (dashed)",
            x=_AXIS,
            y="share of samples that converge",
            series=list(
                _pairs(found, lambda start: start.converged, lambda start: start.plain_converged)
            ),
            log_x=True,
            span_y=(-0.03, 1.03),
        ),
        Panel(
            title=f"{found.solver} (points), plain iteration (dashed)",
            x=_AXIS,
            y="evaluations of a sample",
            series=list(_pairs(found, lambda start: start.evals, lambda start: start.plain_evals)),
            log_x=True,
            zero=True,
        ),
    ]


def _radii(found: Sweep) -> Iterator[Series]:
    for colour, name in enumerate(found.ensembles):
        starts = found.of(name)
        scales = [start.scale for start in starts]
        yield Series(
            label=name,
            x=scales,
            y=[start.radius if start.workable else None for start in starts],
            low=[start.radius if start.workable else None for start in starts],
            high=[start.largest if start.workable else None for start in starts],
            colour=colour,
            style="marked",
        )
        predicted = [start.forecast.radius if start.forecast else None for start in starts]
        yield Series(label="", x=scales, y=predicted, colour=colour, style="dashed")


def _pairs(
    found: Sweep, own: Callable[[Start], float], plain: Callable[[Start], float]
) -> Iterator[Series]:
    for colour, name in enumerate(found.ensembles):
        starts = found.of(name)
        scales = [start.scale for start in starts]
        reached = [own(start) for start in starts]
        yield Series(label=name, x=scales, y=reached, colour=colour, style="marked")
        heights = [plain(start) for start in starts]
        yield Series(label="", x=scales, y=heights, colour=colour, style="dashed")
