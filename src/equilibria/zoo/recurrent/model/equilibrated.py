"""What the explicit and the implicit equilibrated cell share: f, gamma, and the sign of h_(k-1)."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Literal

from torch import Tensor
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn.recurrent.cell import Activation, Cell, CellOptions
from equilibria.zoo.recurrent.model.transition import Transition, transition

__all__ = ["Equilibrated", "EquilibratedOptions"]


@dataclass(frozen=True, kw_only=True)
class EquilibratedOptions(CellOptions):
    """The ODE h'(t) = f(h - tau h_(k-1); x_k) - gamma (h - tau h_(k-1)).

    Args:
        activation: phi of f.
        rank: rank of V H in P = U = I + V H (eq. 10); null for a full matrix U and no P.
        depth: layers of f; above 1 only without a rank.
        transition: tau, of which dh_k/dh_(k-1) = tau I at equilibrium: -1 is the paper's, 1 its
            variant with -h_(k-1), 0 the ODE without the shift.
        gamma: decay of the ODE.
        bound: largest singular value of each matrix of f: below gamma there is one equilibrium,
            and Euler steps below 2 / (gamma + bound) lead to it; null for no bound.
    """

    activation: Activation = "relu"
    rank: int | None = None
    depth: int = 1
    transition: Literal[-1, 0, 1] = -1
    gamma: float = 1.0
    bound: float | None = None

    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "depth", "gamma", "bound", "rank")
        if self.transition not in (-1, 0, 1):
            raise ValueError(f"transition must be -1, 0 or 1; got {self.transition}")
        if self.rank is not None and self.depth > 1:
            raise ValueError(
                f"depth is {self.depth} and rank {self.rank}: a deep transition has full "
                "matrices; set rank to null or depth to 1"
            )

    @property
    @override
    def title(self) -> str:
        traits = self.traits()
        return super().title + (f" ({', '.join(traits)})" if traits else "")

    def traits(self) -> list[str]:
        """Return what the title says of a variant."""
        return {-1: [], 0: ["without h_(k-1)"], 1: ["-h_(k-1)"]}[self.transition]

    def function(self, hidden: int) -> Transition:
        """Return a new f."""
        return transition(
            hidden, self.activation, rank=self.rank, depth=self.depth, bound=self.bound
        )


class Equilibrated(Cell):
    """A cell with a transition function f(s; u) of s = h_k - tau h_(k-1)."""

    @abc.abstractmethod
    def function(self) -> Transition:
        """Return f."""

    def inject(self, x: Tensor) -> Tensor:
        """Return what f adds to the product with s, (..., hidden)."""
        return self.function().carry(super().inject(x))

    def weights(self) -> tuple[Tensor, ...]:
        return self.function().matrices()
