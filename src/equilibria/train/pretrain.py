"""Pretraining as a shallow network, as a recipe names it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from equilibria.models import Model
from equilibria.nn import using
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
        steps: steps of the optimiser before the first solve.

    papers: Bai et al. 2019, sec. 4 and appendix E.
    """

    layers: int = 2
    steps: int = 1000

    def __post_init__(self) -> None:
        for name in ("layers", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")

    def applied(self, model: Model) -> AbstractContextManager[None]:
        """Make `model` the shallow network within a `with` block."""
        # The iterate that was evaluated last is the answer: `layers` steps take one more.
        solver = Picard(rtol=0.0, atol=0.0, max_evals=self.layers + 1, patience=None)
        return using(model, solver, Unrolled())
