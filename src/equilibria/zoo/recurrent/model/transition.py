"""The function f of an equilibrated cell: f(s; u), with s = h + h_(k-1) and u the injection."""

from __future__ import annotations

import abc

import torch
from torch import Tensor, nn

from equilibria.nn.recurrent.cell import phi_of, uniform_

__all__ = ["Deep", "Dense", "LowRank", "Transition", "transition"]


class Transition(nn.Module, abc.ABC):
    """f(s; u), with matrices that are computed once per sequence.

    Args:
        hidden: entries of the state.
        activation: phi, whose slope is 1 at most.
        bound: largest singular value of each matrix of a product with s, so that f is a
            contraction where it is below 1; None for no bound.
    """

    def __init__(self, hidden: int, activation: str, bound: float | None) -> None:
        super().__init__()
        self.hidden, self.phi, self.bound = hidden, phi_of(activation), bound

    @abc.abstractmethod
    def matrices(self) -> tuple[Tensor, ...]:
        """Return the transposed matrices that `forward` takes; the first multiplies s."""

    def bounded(self, matrix: Tensor) -> Tensor:
        """Return the matrix, scaled down where its largest singular value is above the bound."""
        if self.bound is None:
            return matrix
        # Not bound / norm, clamped to 1: of a matrix of zeros that has no gradient but NaN.
        return matrix * (self.bound / torch.linalg.matrix_norm(matrix, 2).clamp(min=self.bound))

    def carry(self, u: Tensor) -> Tensor:
        """Return what f adds to the product with s, for all steps at once, from W x + b."""
        return u

    def forward(self, s: Tensor, u: Tensor, *matrices: Tensor) -> Tensor:
        """Return f(s; u), (batch, hidden).

        Args:
            s: (batch, hidden).
            u: of `carry`, (batch, hidden).
            matrices: of `matrices`.
        """
        return self.phi(torch.addmm(u, s, matrices[0]))


class Dense(Transition):
    """f(s; u) = phi(U s + u).

    papers: Kag et al. 2019, sec. 2.
    """

    def __init__(self, hidden: int, activation: str, bound: float | None = None) -> None:
        super().__init__(hidden, activation, bound)
        self.U = nn.Parameter(torch.empty(hidden, hidden))
        uniform_([self.U], hidden)

    def matrices(self) -> tuple[Tensor, ...]:
        return (self.bounded(self.U).t(),)


class LowRank(Transition):
    """f(s; u) = phi(P (U s + u)) with P = U = I + V H, of 2 hidden x rank parameters.

    papers: Kag et al. 2019, eq. 10. P U and P u are formed once per sequence.
    """

    def __init__(self, hidden: int, activation: str, rank: int, bound: float | None = None) -> None:
        super().__init__(hidden, activation, bound)
        self.V = nn.Parameter(torch.empty(hidden, rank))
        self.H = nn.Parameter(torch.empty(rank, hidden))
        # The largest singular value of V H is then near .1 (1 + sqrt(rank / hidden))^2: f begins
        # near phi(s + u) whatever the sizes are.
        nn.init.normal_(self.V, std=0.1**0.5 * hidden**-0.5)
        nn.init.normal_(self.H, std=0.1**0.5 * hidden**-0.5)

    @property
    def factored(self) -> bool:
        """Whether the matrix is kept as a product of small ones, which take less room."""
        return self.bound is None

    def matrices(self) -> tuple[Tensor, ...]:
        once = self.once()
        return (self.bounded(once @ once).t(),)

    def once(self) -> Tensor:
        """Return I + V H."""
        return torch.eye(self.hidden, dtype=self.V.dtype, device=self.V.device) + self.V @ self.H

    def carry(self, u: Tensor) -> Tensor:
        return u @ self.once().t()


class Deep(Transition):
    """f(s; u) = phi(W_L ... phi(W_1 phi(U s + u))), the deep transition of Pascanu et al. 2014.

    papers: Kag et al. 2019, sec. 2, "Multi-Layer RNN Blocks".

    Args:
        hidden: entries of the state.
        activation: phi.
        depth: layers, L + 1.
        bound: of each matrix.
    """

    def __init__(
        self, hidden: int, activation: str, depth: int, bound: float | None = None
    ) -> None:
        super().__init__(hidden, activation, bound)
        self.maps = nn.ParameterList(torch.empty(hidden, hidden) for _ in range(depth))
        uniform_(list(self.maps), hidden)

    def matrices(self) -> tuple[Tensor, ...]:
        return tuple(self.bounded(each).t() for each in self.maps)

    def forward(self, s: Tensor, u: Tensor, *matrices: Tensor) -> Tensor:
        s = super().forward(s, u, *matrices)
        for matrix in matrices[1:]:
            s = self.phi(s @ matrix)
        return s


def transition(
    hidden: int,
    activation: str,
    *,
    rank: int | None = None,
    depth: int = 1,
    bound: float | None = None,
) -> Transition:
    """Return f: low-rank where there is a rank, deep where there is more than one layer."""
    if rank is not None:
        if rank > hidden:
            raise ValueError(
                f"rank is {rank}, and the state has {hidden} entries: a low rank is at most that; "
                "None has a full matrix"
            )
        return LowRank(hidden, activation, rank, bound)
    if depth > 1:
        return Deep(hidden, activation, depth, bound)
    return Dense(hidden, activation, bound)
