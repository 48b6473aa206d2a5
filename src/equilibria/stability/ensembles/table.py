"""A sweep as a table."""

from __future__ import annotations

import math
from collections.abc import Callable

from equilibria.stability.ensembles.choice import HELD
from equilibria.stability.ensembles.recommendation import Recommendation
from equilibria.stability.ensembles.results import Start, Sweep
from equilibria.words import percent

__all__ = ["tabulate"]


def tabulate(
    found: Sweep, advice: Recommendation | None = None
) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the rows of a table: the model as it is, and each start.

    A radius is left out where too few samples converge: it would be that of the survivors.

    Args:
        found: what was measured.
        advice: the start that it recommends is marked with a star.
    """
    columns: list[tuple[str, Callable[[Start], str]]] = []
    if any(abs(start.gain - start.scale) > (1 - HELD) * start.scale for start in found.starts):
        columns += [("acts as", lambda start: _number(start.gain))]
    columns += [
        ("converged", _converged),
        ("evals", lambda start: f"{start.evals:.1f}"),
        ("plain", lambda start: percent(start.plain_converged)),
        ("evals", lambda start: f"{start.plain_evals:.1f}"),
        ("radius", lambda start: _number(start.radius) if start.workable else "–"),
        ("max", lambda start: _number(start.largest) if start.workable else "–"),
    ]
    if found.theory:
        columns += [("theory", lambda start: _number(start.predicted))]
    rows: list[list[str]] = []
    if found.own is not None:
        own = Start(ensemble=found.ensembles[0], scale=found.own.gain, trials=(found.own,))
        rows.append(["as it is", "–", *(text(own) for _, text in columns)])
    best = (advice.ensemble, advice.scale) if advice and advice.workable else None
    for start in found.starts:
        scale = f"{'* ' * (best == (start.ensemble, start.scale))}{start.scale:g}"
        rows.append([start.ensemble, scale, *(text(start) for _, text in columns)])
    return ["ensemble", "scale", *(head for head, _ in columns)], rows


def _converged(start: Start) -> str:
    """The share of all draws, and that of the worst where it is another."""
    said = percent(start.converged)
    return said if start.worst == start.converged else f"{said} (≥ {percent(start.worst)})"


def _number(value: float) -> str:
    """Three digits; a dash for none."""
    return "–" if math.isnan(value) else f"{value:.3g}"
