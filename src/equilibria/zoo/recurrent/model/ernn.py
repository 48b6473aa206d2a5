"""The equilibrated recurrent network: K Euler steps towards the equilibrium of an ODE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn.recurrent.cell import State
from equilibria.zoo.recurrent.model.equilibrated import Equilibrated, EquilibratedOptions
from equilibria.zoo.recurrent.model.transition import Transition

__all__ = ["ERNNCell", "ERNNOptions"]


@dataclass(frozen=True, kw_only=True)
class ERNNOptions(EquilibratedOptions):
    """K Euler steps.

    Args:
        activation: phi of f.
        rank: rank of V H in P = U = I + V H (eq. 10); null for a full matrix U and no P.
        depth: layers of f; above 1 only without a rank.
        transition: tau, of which dh_k/dh_(k-1) = tau I at equilibrium: -1 is the paper's, 1 its
            variant with -h_(k-1), 0 the ODE without the shift.
        gamma: decay of the ODE.
        bound: largest singular value of each matrix of f: below gamma there is one equilibrium,
            and Euler steps below 2 / (gamma + bound) lead to it; null for no bound.
        steps: K.
        start: h^(0): "zero" as in eq. 6, or "previous", h_(k-1), as in eq. 5.
        step_size: eta at the start of training; each inner step learns its own.
        times: steps of a sequence, at most, where each also has step sizes of its own, as in
            eq. 11; null for the same ones at all times.
    """

    steps: int = 1
    start: Literal["zero", "previous"] = "previous"
    step_size: float = 0.01
    times: int | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "(0, inf)", "steps", "times")
        if not abs(self.step_size) < float("inf"):
            raise ValueError(f"step_size must be finite; got {self.step_size}")
        if self.start not in ("zero", "previous"):
            raise ValueError(f'start must be "zero" or "previous"; got {self.start!r}')
        if self.start == "zero" and self.transition == 0:
            raise ValueError(
                'start "zero" and transition 0 leave a cell without memory: set one of them '
                "otherwise"
            )

    @override
    def traits(self) -> list[str]:
        return [f"K = {self.steps}", f"start {self.start}", *super().traits()]

    @override
    def build(self, width: int, hidden: int, bias: bool = True, **layer: Any) -> ERNNCell:
        return ERNNCell(self, width, hidden, bias)


class ERNNCell(Equilibrated):
    """h^(i+1) = h^(i) + eta_i [f(h^(i) - tau h_(k-1); x_k) - gamma (h^(i) - tau h_(k-1))].

    h_k = h^(K), and h^(0) is 0 or h_(k-1); tau is -1 but in variants. In s = h - tau h_(k-1) the
    step is s + eta (f(s; x_k) - gamma s).

    papers: Kag et al. 2019, eq. 6 and 11; low-rank f, eq. 10.
    """

    def __init__(self, options: ERNNOptions, width: int, hidden: int, bias: bool = True) -> None:
        super().__init__(width, hidden, bias=bias)
        self.f = options.function(hidden)
        self.steps, self.tau, self.gamma = options.steps, options.transition, options.gamma
        self.begins_at_zero, self.times = options.start == "zero", options.times
        shape = (options.times or 1, options.steps)
        self.step_sizes = nn.Parameter(torch.full(shape, float(options.step_size)))

    @override
    def function(self) -> Transition:
        return self.f

    @override
    def weights(self) -> tuple[Tensor, ...]:
        # Cut here into single numbers, since cutting at each step would take longer than the step.
        sizes = self.step_sizes.flatten().unbind()
        return (*sizes, *super().weights())

    @override
    def step(self, u: Tensor, state: State, weights: tuple[Tensor, ...], time: int) -> State:
        if self.times is not None and time >= self.times:
            raise ValueError(
                f"this cell has step sizes for {self.times} steps of a sequence, and this is step "
                f"{time + 1}: build it with a larger `times`, or with None for the same at all"
            )
        (before,) = state
        count = self.step_sizes.numel()
        matrices = weights[count:]
        first = 0 if self.times is None else time * self.steps
        s = self._start(before)
        for size in weights[first : first + self.steps]:
            goal = self.f(s, u, *matrices).to(s.dtype)
            # With gamma 1 the step is an interpolation, one kernel instead of three.
            s = torch.lerp(s, goal, size) if self.gamma == 1 else s + size * (goal - self.gamma * s)
        return (s if self.tau == 0 else torch.add(s, before, alpha=self.tau),)

    def _start(self, before: Tensor) -> Tensor:
        """h^(0) - tau h_(k-1)."""
        factor = (0 if self.begins_at_zero else 1) - self.tau
        return before if factor == 1 else factor * before
