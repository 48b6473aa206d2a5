"""Cells with gates: LSTM, GRU, UGRNN and FastGRNN."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn.recurrent.cell import Activation, Cell, CellOptions, State, phi_of, uniform_


class Gated(Cell):
    """A cell with one matrix from state to state for all gates."""

    def __init__(self, width: int, hidden: int, gates: int, bias: bool) -> None:
        super().__init__(width, hidden, gates=gates, bias=bias)
        self.U = nn.Parameter(torch.empty(gates * hidden, hidden))
        uniform_(list(self.parameters()), hidden)

    @override
    def weights(self) -> tuple[Tensor, ...]:
        return (self.U.t(),)


class LSTMCell(Gated):
    """c_k = s(f) c_(k-1) + s(i) tanh(g), h_k = s(o) tanh(c_k); i, f, o, g = W x_k + U h_(k-1) + b.

    s is the logistic function. The state is (h, c).

    papers: Hochreiter and Schmidhuber 1997; forget gates open, Jozefowicz et al. 2015.
    """

    states = 2

    def __init__(self, options: LSTMOptions, width: int, hidden: int, bias: bool) -> None:
        super().__init__(width, hidden, 4, bias)
        if bias:
            nn.init.constant_(self.injection.bias[hidden : 2 * hidden], options.forget)

    @override
    def step(self, u: Tensor, state: State, weights: tuple[Tensor, ...], time: int) -> State:
        h, c = state
        gates = torch.addmm(u, h, weights[0])
        i, f, o = torch.sigmoid(gates[:, : 3 * self.hidden]).chunk(3, 1)
        c = torch.addcmul((f * c).to(c.dtype), i, torch.tanh(gates[:, 3 * self.hidden :]))
        return o * torch.tanh(c), c


@dataclass(frozen=True, kw_only=True)
class LSTMOptions(CellOptions):
    """Long short-term memory.

    Args:
        forget: bias of the forget gate at the start of training.
    """

    cell = LSTMCell

    forget: float = 1.0


class GRUCell(Gated):
    """h_k = s(q) h_(k-1) + (1 - s(q)) tanh(W_n x_k + b_n + s(r) (U_n h_(k-1) + c)).

    q and r are W x_k + U h_(k-1) + b each, s the logistic function.

    papers: Cho et al. 2014.
    """

    def __init__(self, options: GRUOptions, width: int, hidden: int, bias: bool) -> None:
        super().__init__(width, hidden, 3, bias)
        self.c = nn.Parameter(torch.zeros(hidden)) if bias else None

    @override
    def step(self, u: Tensor, state: State, weights: tuple[Tensor, ...], time: int) -> State:
        (h,) = state
        products = h @ weights[0]
        cut = 2 * self.hidden
        q, r = torch.sigmoid(u[:, :cut] + products[:, :cut]).chunk(2, 1)
        recurrent = products[:, cut:] if self.c is None else products[:, cut:] + self.c
        update = torch.tanh(torch.addcmul(u[:, cut:], r, recurrent)).to(h.dtype)
        return (torch.lerp(update, h, q.to(h.dtype)),)


@dataclass(frozen=True, kw_only=True)
class GRUOptions(CellOptions):
    """The gated recurrent unit."""

    cell = GRUCell


class UGRNNCell(Gated):
    """h_k = s(g) h_(k-1) + (1 - s(g)) phi(c); g and c are W x_k + U h_(k-1) + b each.

    papers: Collins et al. 2016, appendix A.
    """

    def __init__(self, options: UGRNNOptions, width: int, hidden: int, bias: bool) -> None:
        super().__init__(width, hidden, 2, bias)
        self.phi = phi_of(options.activation)
        if bias:
            nn.init.constant_(self.injection.bias[:hidden], options.update)

    @override
    def step(self, u: Tensor, state: State, weights: tuple[Tensor, ...], time: int) -> State:
        (h,) = state
        gate, update = torch.addmm(u, h, weights[0]).chunk(2, 1)
        return (torch.lerp(self.phi(update).to(h.dtype), h, torch.sigmoid(gate).to(h.dtype)),)


@dataclass(frozen=True, kw_only=True)
class UGRNNOptions(CellOptions):
    """The update-gate network.

    Args:
        activation: phi.
        update: bias of the gate at the start of training.
    """

    cell = UGRNNCell

    activation: Activation = "tanh"
    update: float = 1.0


class FastGRNNCell(Cell):
    """h_k = (s(zeta) (1 - z) + s(nu)) phi(v + b_h) + z h_(k-1), z = s(v + b_z).

    v = W x_k + U h_(k-1), s the logistic function. With full matrices, in float32, it is what
    the papers call FastGRNN-LSQ; FastGRNN proper has low-rank, sparse and quantised matrices, of
    which `rank` gives the first and `equilibria export --weights int8` the last.

    papers: Kusupati et al. 2018, sec. 3.2; zeta and nu start at 1 and -4, as in the authors' code.
    """

    def __init__(self, options: FastGRNNOptions, width: int, hidden: int, bias: bool) -> None:
        super().__init__(width, options.rank or hidden, bias=False)
        self.hidden, rank = hidden, options.rank
        self.phi = phi_of(options.activation)
        self.widen = None if rank is None else nn.Parameter(torch.empty(hidden, rank))
        self.U = nn.Parameter(torch.empty(hidden if rank is None else rank, hidden))
        self.U_out = None if rank is None else nn.Parameter(torch.empty(hidden, rank))
        uniform_(list(self.parameters()), hidden)
        self.biases = nn.Parameter(torch.ones(2, hidden)) if bias else None
        self.zeta = nn.Parameter(torch.tensor(options.zeta))
        self.nu = nn.Parameter(torch.tensor(options.nu))

    @property
    @override
    def factored(self) -> bool:
        return self.U_out is not None

    @override
    def inject(self, x: Tensor) -> Tensor:
        u = super().inject(x)
        return u if self.widen is None else u @ self.widen.t()

    @override
    def weights(self) -> tuple[Tensor, ...]:
        matrix = self.U if self.U_out is None else self.U_out @ self.U
        return matrix.t(), torch.sigmoid(self.zeta), torch.sigmoid(self.nu)

    @override
    def step(self, u: Tensor, state: State, weights: tuple[Tensor, ...], time: int) -> State:
        (h,) = state
        matrix, zeta, nu = weights
        gate = update = torch.addmm(u, h, matrix)
        if self.biases is not None:
            gate, update = gate + self.biases[0], update + self.biases[1]
        z = torch.sigmoid(gate).to(h.dtype)
        return ((zeta * (1 - z) + nu) * self.phi(update) + z * h,)


@dataclass(frozen=True, kw_only=True)
class FastGRNNOptions(CellOptions):
    """A gate that shares its matrices with the update.

    Args:
        activation: phi.
        rank: rank of both matrices, W and U, each a product of two; null for full matrices.
        zeta: logit of the weight of 1 - z at the start of training.
        nu: logit of what is added to it.
    """

    cell = FastGRNNCell

    activation: Activation = "tanh"
    rank: int | None = None
    zeta: float = 1.0
    nu: float = -4.0

    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "rank")
