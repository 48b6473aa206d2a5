"""The equilibrated recurrent network: K Euler steps towards the equilibrium of an ODE."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn.recurrent.cell import Activation, Cell, CellOptions, State, phi_of, uniform_

# --- transition -----------------------------------------------------------------------------------

# The function f of an equilibrated cell: f(s; u), with s = h + h_(k-1) and u the injection.


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

    def limit_norm(self, matrix: Tensor) -> Tensor:
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


class DenseTransition(Transition):
    """f(s; u) = phi(U s + u).

    papers: Kag et al. 2019, sec. 2.
    """

    def __init__(self, hidden: int, activation: str, bound: float | None = None) -> None:
        super().__init__(hidden, activation, bound)
        self.U = nn.Parameter(torch.empty(hidden, hidden))
        uniform_([self.U], hidden)

    def matrices(self) -> tuple[Tensor, ...]:
        return (self.limit_norm(self.U).t(),)


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
        return (self.limit_norm(once @ once).t(),)

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
        return tuple(self.limit_norm(each).t() for each in self.maps)

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
    return DenseTransition(hidden, activation, bound)


# --- equilibrated ---------------------------------------------------------------------------------

# What the explicit and the implicit equilibrated cell share: f, gamma, and the sign of h_(k-1).


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


# --- ernn -----------------------------------------------------------------------------------------


class ERNNCell(Equilibrated):
    """h^(i+1) = h^(i) + eta_i [f(h^(i) - tau h_(k-1); x_k) - gamma (h^(i) - tau h_(k-1))].

    h_k = h^(K), and h^(0) is 0 or h_(k-1); tau is -1 but in variants. In s = h - tau h_(k-1) the
    step is s + eta (f(s; x_k) - gamma s).

    papers: Kag et al. 2019, eq. 6 and 11; low-rank f, eq. 10.
    """

    def __init__(self, options: ERNNOptions, width: int, hidden: int, bias: bool) -> None:
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

    cell = ERNNCell

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
