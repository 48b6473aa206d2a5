"""A plain cell whose matrix has singular values near 1, by its singular value decomposition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn.recurrent.cell import Activation, Cell, CellOptions, State, phi_of

__all__ = ["SpectralRNNCell", "SpectralRNNOptions"]


@dataclass(frozen=True, kw_only=True)
class SpectralRNNOptions(CellOptions):
    """Singular vectors as products of reflections, singular values in 1 +- radius.

    Args:
        activation: phi.
        reflections: Householder reflections of each of the two orthogonal matrices, at most;
            null for as many as the state has entries.
        radius: largest distance of a singular value from 1.
    """

    activation: Activation = "tanh"
    reflections: int | None = 16
    radius: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "reflections", "radius")

    @override
    def build(self, width: int, hidden: int, bias: bool = True, **layer: Any) -> SpectralRNNCell:
        return SpectralRNNCell(self, width, hidden, bias)


class SpectralRNNCell(Cell):
    """h_k = phi(Q diag(sigma) R^T h_(k-1) + W x_k + b), sigma = 1 + 2 r (s(v) - 1/2).

    Q and R are products of Householder reflections, s is the logistic function.

    papers: Zhang, Lei and Dhillon 2018, sec. 3 and 4.
    """

    def __init__(
        self, options: SpectralRNNOptions, width: int, hidden: int, bias: bool = True
    ) -> None:
        super().__init__(width, hidden, bias=bias)
        self.phi, self.radius = phi_of(options.activation), options.radius
        count = min(options.reflections or hidden, hidden)
        self.left = nn.Parameter(torch.randn(hidden, count))
        self.right = nn.Parameter(torch.randn(hidden, count))
        self.v = nn.Parameter(torch.zeros(hidden))

    @override
    def weights(self) -> tuple[Tensor, ...]:
        sigma = 1 + 2 * self.radius * (torch.sigmoid(self.v) - 0.5)
        matrix = (reflected(self.left) * sigma) @ reflected(self.right).t()
        return (matrix.t(),)

    @override
    def step(self, u: Tensor, state: State, weights: tuple[Tensor, ...], time: int) -> State:
        return (self.phi(torch.addmm(u, state[0], weights[0])),)


def reflected(vectors: Tensor) -> Tensor:
    """Return the product of the reflections I - 2 v v^T / |v|^2 of columns v, (hidden, hidden).

    Row i of column j counts where i >= j: the entries above would be redundant.
    """
    hidden, count = vectors.shape
    diagonal = vectors.diagonal()
    # householder_product has vectors whose entry on the diagonal is 1.
    scale = torch.where(diagonal.abs() < 1e-3, torch.full_like(diagonal, 1e-3), diagonal)
    lower = (vectors / scale).tril(-1)
    tau = 2 / (1 + lower.square().sum(0))
    square = torch.cat([lower, lower.new_zeros(hidden, hidden - count)], 1)
    return torch.linalg.householder_product(square, tau)
