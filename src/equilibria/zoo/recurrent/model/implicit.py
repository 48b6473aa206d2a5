"""Cells at equilibrium: solved to a tolerance, all steps of all sequences in one batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn import DEQ
from equilibria.nn.recurrent.cell import Activation, Cell, CellOptions, State, Sweep, last
from equilibria.solve import Solution, shared
from equilibria.zoo.recurrent.model.ernn import (
    Equilibrated,
    EquilibratedOptions,
    Transition,
    transition,
)


class ScaledTransition(nn.Module):
    """f(z; u) / gamma, of which an equilibrated cell finds the fixed point."""

    def __init__(self, f: Transition, gamma: float) -> None:
        super().__init__()
        self.f, self.gamma = f, gamma

    def forward(self, z: Tensor, u: Tensor, *matrices: Tensor) -> Tensor:
        """Evaluate once, on (samples, hidden)."""
        value = self.f(z, u, *matrices).to(z.dtype)
        return value if self.gamma == 1 else value / self.gamma


class ImplicitERNNCell(Equilibrated):
    """h_k = z_k + tau h_(k-1), with z_k = f(z_k; x_k) / gamma.

    At equilibrium z_k = h_k - tau h_(k-1) solves an equation in which h_(k-1) does not occur.
    z_k depends on x_k alone, so all steps of all sequences are one batch of one solve, and

        h_T = tau^T h_0 + sum_k tau^(T-k) z(x_k):

    dh_T/dh_k = tau^(T-k) I exactly, whatever the weights are. The same sum says what the cell
    cannot do: h_T does not change when inputs trade places (for tau = -1: inputs an even number
    of steps apart), so nothing that depends on their order can be learned from it.

    papers: Kag et al. 2019, eq. 8, Lemma 1 and Theorem 1.
    """

    def __init__(
        self, options: ImplicitERNNOptions, width: int, hidden: int, bias: bool, **layer: Any
    ) -> None:
        super().__init__(width, hidden, bias=bias)
        self.tau = options.transition
        field = ScaledTransition(options.function(hidden), options.gamma)
        self.deq = DEQ(field, **layer)

    @override
    def function(self) -> Transition:
        field = self.deq.cell
        assert isinstance(field, ScaledTransition)
        return field.f

    def solve(self, u: Tensor, weights: tuple[Tensor, ...]) -> Solution:
        """Return the equilibria z of injections (samples, hidden)."""
        return self.deq(u, *map(shared, weights))

    @override
    def step(self, u: Tensor, state: State, weights: tuple[Tensor, ...], time: int) -> State:
        z = self.solve(u, weights).value
        return (z + self.tau * state[0] if self.tau else z,)

    @override
    def sweep(self, x: Tensor, state: State, lengths: Tensor | None = None, time: int = 0) -> Sweep:
        u = self.inject(x)
        if lengths is None:
            solution = self.solve(u.flatten(0, 1), self.weights())
            z = solution.value.unflatten(0, u.shape[:2])
        else:  # nothing is solved for after the end of a sequence
            there = torch.arange(len(u), device=u.device)[:, None] < lengths.to(u.device)
            solution = self.solve(u[there], self.weights())
            z = torch.zeros_like(u, dtype=solution.value.dtype)
            z = z.masked_scatter(there[..., None], solution.value)
        output = accumulate(z, state[0], self.tau)
        after = output[-1] if lengths is None else last(output, lengths)
        return Sweep(output, (after,), (solution,))


@dataclass(frozen=True, kw_only=True)
class ImplicitERNNOptions(EquilibratedOptions):
    __doc__ = EquilibratedOptions.__doc__

    cell = ImplicitERNNCell

    bound: float | None = 0.9

    @property
    @override
    def implicit(self) -> bool:
        return True


def accumulate(z: Tensor, before: Tensor, tau: int) -> Tensor:
    """Return h_k = z_k + tau h_(k-1) for all k, (time, batch, hidden).

    Args:
        z: (time, batch, hidden).
        before: h_0, (batch, hidden).
        tau: -1, 0 or 1.
    """
    if tau == 0:
        return z
    if tau == 1:
        return z.cumsum(0) + before
    signs = torch.ones(len(z), 1, 1, dtype=z.dtype, device=z.device)
    signs[::2] = -1.0  # of h_1, h_3, ...: (-1)^k h_k is a plain sum
    return signs * ((signs * z).cumsum(0) + before)


class BackwardEulerStep(nn.Module):
    """h_(k-1) + eta phi(U h + u), of which an implicit Euler step is the fixed point."""

    def __init__(self, f: Transition, step_size: float) -> None:
        super().__init__()
        self.f, self.step_size = f, step_size

    def forward(self, h: Tensor, u: Tensor, before: Tensor, *matrices: Tensor) -> Tensor:
        """Evaluate once, on (batch, hidden)."""
        return before + self.step_size * self.f(h, u, *matrices).to(before.dtype)


class ImplicitEulerCell(Cell):
    """h_k = h_(k-1) + eta phi(U h_k + W x_k + b): a contrast, whose state is not at equilibrium.

    h_k depends on h_(k-1), so that the steps are solved one after the other.

    papers: Kag et al. 2019, eq. 4, and 5 for K iterations from h_(k-1).
    """

    def __init__(
        self, options: ImplicitEulerOptions, width: int, hidden: int, bias: bool, **layer: Any
    ) -> None:
        super().__init__(width, hidden, bias=bias)
        self.steps = options.steps
        step = BackwardEulerStep(transition(hidden, options.activation), options.step_size)
        solved = options.steps is None
        self.deq = DEQ(step, init=_before, **layer) if solved else None
        self.iterated = None if solved else step

    @override
    def weights(self) -> tuple[Tensor, ...]:
        step = self.deq.cell if self.deq is not None else self.iterated
        assert isinstance(step, BackwardEulerStep)
        return step.f.matrices()

    @override
    def step(self, u: Tensor, state: State, weights: tuple[Tensor, ...], time: int) -> State:
        (before,) = state
        if self.deq is not None:
            return (self.deq(u, before, *map(shared, weights)).value,)
        assert self.iterated is not None
        h = before
        for _ in range(self.steps or 0):
            h = self.iterated(h, u, before, *weights)
        return (h,)


@dataclass(frozen=True, kw_only=True)
class ImplicitEulerOptions(CellOptions):
    """The implicit Euler step of an RNN's ODE.

    Args:
        activation: phi.
        steps: K of eq. 5; null to solve eq. 4 to the solver's tolerance.
        step_size: eta.
    """

    cell = ImplicitEulerCell

    activation: Activation = "tanh"
    steps: int | None = None
    step_size: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "step_size", "steps")

    @property
    @override
    def implicit(self) -> bool:
        return self.steps is None


def _before(u: Tensor, before: Tensor, *matrices: Any) -> Tensor:
    """The start of an implicit Euler step: h_(k-1)."""
    return before
