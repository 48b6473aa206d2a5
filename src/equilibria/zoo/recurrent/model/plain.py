"""Cells without gates: the RNN, and two with an identity beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn.recurrent.cell import Activation, Cell, CellOptions, State, phi_of, uniform_


class PlainCell(Cell):
    """h_k = phi(M h_(k-1) + W x_k + b), with a matrix M^T that is the first of `weights`."""

    phi: Callable[[Tensor], Tensor]

    @override
    def step(self, u: Tensor, state: State, weights: tuple[Tensor, ...], time: int) -> State:
        return (self.phi(torch.addmm(u, state[0], weights[0])),)


class RNNCell(PlainCell):
    """h_k = phi(U h_(k-1) + W x_k + b).

    papers: Kag et al. 2019, eq. 1.
    """

    def __init__(self, options: RNNOptions, width: int, hidden: int, bias: bool) -> None:
        super().__init__(width, hidden, bias=bias)
        self.phi = phi_of(options.activation)
        self.U = nn.Parameter(torch.empty(hidden, hidden))
        uniform_(list(self.parameters()), hidden)

    @override
    def weights(self) -> tuple[Tensor, ...]:
        return (self.U.t(),)


@dataclass(frozen=True, kw_only=True)
class RNNOptions(CellOptions):
    """The plain recurrent network.

    Args:
        activation: phi.
    """

    cell = RNNCell

    activation: Activation = "tanh"


class FastRNNCell(RNNCell):
    """h_k = s(alpha) phi(U h_(k-1) + W x_k + b) + s(beta) h_(k-1), s the logistic function.

    papers: Kusupati et al. 2018, sec. 3.1; alpha and beta start at -3 and 3, as in the authors'
    code.
    """

    def __init__(self, options: FastRNNOptions, width: int, hidden: int, bias: bool) -> None:
        super().__init__(RNNOptions(activation=options.activation), width, hidden, bias)
        self.alpha = nn.Parameter(torch.tensor(options.alpha))
        self.beta = nn.Parameter(torch.tensor(options.beta))

    @override
    def weights(self) -> tuple[Tensor, ...]:
        return (*super().weights(), torch.sigmoid(self.alpha), torch.sigmoid(self.beta))

    @override
    def step(self, u: Tensor, state: State, weights: tuple[Tensor, ...], time: int) -> State:
        matrix, alpha, beta = weights
        (update,) = super().step(u, state, (matrix,), time)
        return (alpha * update + beta * state[0],)


@dataclass(frozen=True, kw_only=True)
class FastRNNOptions(CellOptions):
    """A weighted residual connection.

    Args:
        activation: phi.
        alpha: logit of the weight of the update at the start of training.
        beta: logit of the weight of the state.
    """

    cell = FastRNNCell

    activation: Activation = "relu"
    alpha: float = -3.0
    beta: float = 3.0


class AntisymmetricRNNCell(Cell):
    """h_k = h_(k-1) + eta phi((V - V^T - gamma I) h_(k-1) + W x_k + b).

    Only the upper triangle of V counts, and is all that is kept: hidden (hidden - 1) / 2 entries.

    papers: Chang et al. 2019, eq. 12; Kag et al. 2019, sec. 1.2.
    """

    def __init__(
        self, options: AntisymmetricRNNOptions, width: int, hidden: int, bias: bool
    ) -> None:
        super().__init__(width, hidden, bias=bias)
        self.phi, self.step_size = phi_of(options.activation), options.step_size
        self.gamma = options.gamma
        self.V = nn.Parameter(torch.empty(hidden * (hidden - 1) // 2))
        nn.init.normal_(self.V, std=hidden**-0.5)
        upper = torch.triu_indices(hidden, hidden, offset=1)
        self.register_buffer("upper", upper, persistent=False)

    upper: Tensor

    @override
    def weights(self) -> tuple[Tensor, ...]:
        rows, columns = self.upper
        size = (self.hidden, self.hidden)
        v = self.V.new_zeros(size).index_put((rows, columns), self.V)
        decay = self.gamma * torch.eye(self.hidden, dtype=v.dtype, device=v.device)
        return ((v - v.t() - decay).t(),)

    @override
    def step(self, u: Tensor, state: State, weights: tuple[Tensor, ...], time: int) -> State:
        (before,) = state
        update = self.phi(torch.addmm(u, before, weights[0])).to(before.dtype)
        return (torch.add(before, update, alpha=self.step_size),)


@dataclass(frozen=True, kw_only=True)
class AntisymmetricRNNOptions(CellOptions):
    """Forward Euler of an ODE with an antisymmetric matrix.

    Args:
        activation: phi.
        step_size: eta.
        gamma: diffusion, which keeps the Euler step stable.
    """

    cell = AntisymmetricRNNCell

    activation: Activation = "tanh"
    step_size: float = 0.1
    gamma: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "step_size")
        check_fields(self, "[0, inf)", "gamma")


# --- spectral -------------------------------------------------------------------------------------

# A plain cell whose matrix has singular values near 1, by its singular value decomposition.


class SpectralRNNCell(PlainCell):
    """h_k = phi(Q diag(sigma) R^T h_(k-1) + W x_k + b), sigma = 1 + 2 r (s(v) - 1/2).

    Q and R are products of Householder reflections, s is the logistic function.

    papers: Zhang, Lei and Dhillon 2018, sec. 3 and 4.
    """

    def __init__(self, options: SpectralRNNOptions, width: int, hidden: int, bias: bool) -> None:
        super().__init__(width, hidden, bias=bias)
        self.phi, self.radius = phi_of(options.activation), options.radius
        count = min(options.reflections or hidden, hidden)
        self.left = nn.Parameter(torch.randn(hidden, count))
        self.right = nn.Parameter(torch.randn(hidden, count))
        self.v = nn.Parameter(torch.zeros(hidden))

    @override
    def weights(self) -> tuple[Tensor, ...]:
        sigma = 1 + 2 * self.radius * (torch.sigmoid(self.v) - 0.5)
        matrix = (reflect(self.left) * sigma) @ reflect(self.right).t()
        return (matrix.t(),)


@dataclass(frozen=True, kw_only=True)
class SpectralRNNOptions(CellOptions):
    """Singular vectors as products of reflections, singular values in 1 +- radius.

    Args:
        activation: phi.
        reflections: Householder reflections of each of the two orthogonal matrices, at most;
            null for as many as the state has entries.
        radius: largest distance of a singular value from 1.
    """

    cell = SpectralRNNCell

    activation: Activation = "tanh"
    reflections: int | None = 16
    radius: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "reflections", "radius")


def reflect(vectors: Tensor) -> Tensor:
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
