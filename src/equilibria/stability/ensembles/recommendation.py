"""Which ensemble and which scale to start from, and why, in words."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from equilibria.nn.init import Ensemble
from equilibria.stability.ensembles.choice import Range, choose
from equilibria.stability.ensembles.results import Sweep
from equilibria.stability.ensembles.words import reasons_of, remarks_of
from equilibria.stability.examination import plain

__all__ = ["Recommendation", "recommend"]


@dataclass(frozen=True)
class Recommendation:
    """What to start from.

    Attributes:
        ensemble: the family of the weights.
        scale: sqrt(V).
        workable: whether enough samples converge there; if not, it is the best that was tried.
        ranges: of the ensembles that have workable scales.
        reasons: sentences, the recommendation itself first.
        remarks: sentences on what else to know.
    """

    ensemble: Ensemble
    scale: float
    workable: bool
    ranges: tuple[Range, ...]
    reasons: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def options(self) -> str:
        """The options of `equilibria train` that choose it."""
        return f"--initialisation.ensemble {self.ensemble} --initialisation.scale {self.scale:g}"

    def json(self) -> dict[str, Any]:
        """Everything as dictionaries, lists, text and numbers."""
        return {**plain(asdict(self)), "options": self.options}


def recommend(found: Sweep) -> Recommendation:
    """Say which ensemble and which scale to start from.

    A start is workable where at least 95 % of the samples converge under the layer's own solver
    with each draw of the weights; nothing is made of a radius elsewhere, where it is that of the
    survivors. A start is judged by its largest radius, over all samples and draws. Of an ensemble
    the start is taken whose radius is nearest to .6, the middle of .3 to .9.

    The ensemble is one with such a start inside .3 to .9, or within .05 of the nearest to it. Of
    these it is the one with the widest
    range between the gains at which the radius is .3 and .9, or ceases to be workable; of those
    within 15 % of the widest, or whose range ends only because no other scale was tried, the one
    with the fewest evaluations at the same radius, .6 or the largest that all reach; of those
    within 10 % of the fewest, the one with whose worst draw the most samples converge; of equals
    the first of orthogonal, gaussian, goe, antisymmetric, normal.

    Args:
        found: what a sweep has measured.
    """
    choice = choose(found)
    best = choice.best
    return Recommendation(
        best.ensemble,
        best.scale,
        best.workable,
        choice.ranges,
        reasons_of(found, choice),
        remarks_of(found, choice),
    )
