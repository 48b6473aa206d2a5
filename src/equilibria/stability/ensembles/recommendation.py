"""Which ensemble and which scale to start from, and what to be wary of."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from equilibria.nn.init import Ensemble
from equilibria.stability.ensembles.choice import AIM, MIDDLE, Decided, aimed, choose
from equilibria.stability.ensembles.results import Start, Sweep
from equilibria.stability.examination import plain

__all__ = ["Recommendation", "recommend"]

_DECIDED: dict[Decided, str] = {
    "alone": "no other ensemble tried is workable",
    "radius": f"the radius nearest to {AIM[0]} to {AIM[1]}",
    "width": "the widest range of scales",
    "evals": "the fewest evaluations",
    "worst": "the most samples converged with the worst draw",
    "order": "by convention: measurements do not tell the ensembles apart",
}


@dataclass(frozen=True)
class Recommendation:
    """What to start from.

    Attributes:
        ensemble: the family of the weights.
        scale: sqrt(V).
        workable: whether enough samples converge there; if not, it is the best that was tried.
        decided: what told the ensemble from the others: alone, radius, width, evals, worst or
            order.
        warnings: sentences on numbers that are missing or not to be relied on.
    """

    ensemble: Ensemble
    scale: float
    workable: bool
    decided: Decided
    warnings: tuple[str, ...]

    @property
    def options(self) -> str:
        """The options of `equilibria train` that choose it."""
        return f"--initialisation.ensemble {self.ensemble} --initialisation.scale {self.scale:g}"

    def __str__(self) -> str:
        if not self.workable:
            return "Recommended: none, as no start that was tried is workable"
        return f"Recommended: {self.ensemble} at scale {self.scale:g} ({_DECIDED[self.decided]})"

    def json(self) -> dict[str, Any]:
        """Everything as dictionaries, lists, text and numbers."""
        return {**plain(asdict(self)), "options": self.options}


def recommend(found: Sweep) -> Recommendation:
    """Choose the ensemble and the scale to start from.

    A start is workable where at least 95 % of the samples converge under the layer's own solver
    with each draw of the weights; nothing is made of a radius elsewhere, where it is that of the
    survivors. A start is judged by its largest radius, over all samples and draws. Of an ensemble
    the start is taken whose radius is nearest to .6, the middle of .3 to .9.

    The ensemble is one with such a start inside .3 to .9, or within .05 of the nearest to it. Of
    these it is the one with the widest range between the gains at which the radius is .3 and .9, or
    ceases to be workable; of those within 15 % of the widest, or whose range ends only because no
    other scale was tried, the one with the fewest evaluations at the same radius, .6 or the largest
    that all reach; of those within 10 % of the fewest, the one with whose worst draw the most
    samples converge; of equals the first of orthogonal, gaussian, goe, antisymmetric, normal.

    Args:
        found: what a sweep has measured.
    """
    best, decided = choose(found)
    warnings = tuple(_warnings(found, best))
    return Recommendation(best.ensemble, best.scale, best.workable, decided, warnings)


def _warnings(found: Sweep, best: Start) -> Iterator[str]:
    """What the table cannot say of its numbers."""
    if not best.workable:
        yield _suggest_remedies(found)
    elif not aimed(best):
        yield _describe_radius(found, best)
    if found.own is None:
        yield f"The model as it is cannot be reached: {found.refused}."
    for name, reason in found.impossible.items():
        yield f"{name} was left out: {reason}."
    for name, count in found.replaced.items():
        if count:
            yield (
                f"The rows of {name} have Gaussian weights in {count} of {found.maps} maps, whose "
                "shapes have no such member."
            )
    if not found.theory:
        yield f"There is no prediction: {found.reason}."
    yield from found.notes


def _suggest_remedies(found: Sweep) -> str:
    """What to do where no start is workable."""
    said = (
        f"Try smaller --scales, a --solver.max_evals above {found.max_evals} or a --solver.rtol "
        f"above {found.rtol:g}"
    )
    if found.normalisations:
        kinds = " and ".join(found.normalisations)
        said += (
            f". {kinds} in the cell undoes the scale of the weights: if no scale helps, begin with "
            "a shallow network (pretrain: {name: ShallowStart})"
        )
    return f"{said}."


def _describe_radius(found: Sweep, best: Start) -> str:
    """A recommended start whose radius is not one to start from."""
    if not math.isfinite(best.largest):
        return "The spectral radius of the recommended start could not be measured."
    low, high = AIM
    means = (
        f"below {low}: the network is hardly deeper than one layer"
        if best.largest < low
        else f"above {high}: solves are long and training may take it over 1"
    )
    said = f"The largest radius of the recommended start, {best.largest:.2g}, is {means}."
    radii = [start.largest for start in found.of(best.ensemble) if start.workable]
    if any(radius < low for radius in radii) and any(radius > high for radius in radii):
        said += (
            f" --initialisation.ensemble {best.ensemble} --initialisation.radius {MIDDLE:.1f} "
            "finds a scale between those that were tried."
        )
    return said
