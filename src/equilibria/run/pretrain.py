"""Pretraining as a shallow network, as a recipe names it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from equilibria.checks import check_fields
from equilibria.nn import using
from equilibria.run.models import Model
from equilibria.solve import Picard, Unrolled

__all__ = ["ShallowStart"]


@dataclass(frozen=True, kw_only=True)
class ShallowStart:
    """Trains the cell unrolled a few times in the first steps, then solves for its fixed point.

        z_(i+1) = f(z_i; x),    z_0 = 0,    i < layers,

    is an ordinary weight-tied network, with ordinary gradients through all its layers. An
    evaluation during these steps uses the same shallow network. The regulariser and the correction
    begin with the solves.

    Args:
        layers: evaluations of the cell.
        steps: steps of the optimiser before the first solve; below 1, their share of the run.

    papers: Bai et al. 2019, sec. 4 and appendix E.
    """

    layers: int = 2
    steps: int | float = 1000

    def __post_init__(self) -> None:
        check_fields(self, "[1, inf)", "layers")
        if not (0 < self.steps < 1 or (self.steps >= 1 and self.steps % 1 == 0)):
            raise ValueError(
                "steps must be a whole number of at least 1, or a share of the run between 0 and 1;"
                f" got {self.steps}"
            )

    def count(self, steps: int) -> int:
        """Return how many of a run's steps are shallow; a share of them is never all of them."""
        if self.steps >= 1:
            return int(self.steps)
        return min(max(1, round(self.steps * steps)), steps - 1)

    def applied(self, model: Model) -> AbstractContextManager[None]:
        """Make `model` the shallow network within a `with` block."""
        return using(model, Picard(), Unrolled(max_evals=self.layers))
