"""A stand-in for a solve when nothing is computed, with the memory and work of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint
from typing_extensions import override

from equilibria.solve import (
    GMRES,
    Adjoint,
    AlternatingAnderson,
    Anderson,
    Audited,
    Broyden,
    Dense,
    Implicit,
    JacobianFree,
    LinearSolver,
    NeumannPhantom,
    Phantom,
    Relay,
    Shine,
    Solver,
    Unrolled,
)
from equilibria.solve.capture import capture
from equilibria.solve.deferred import BLOCK
from equilibria.solve.equation import Derivative
from equilibria.solve.implicit import Found
from equilibria.solve.nonlinear import Nonlinear
from equilibria.solve.rows import room
from equilibria.solve.tree import Leaves
from equilibria.train.memory import history_vectors
from equilibria.train.plan_ledger import Ledger

__all__ = [
    "EVALUATION",
    "FIRST",
    "HISTORY",
    "LINEARISED",
    "PARAMETERS",
    "PRODUCT",
    "READOUT",
    "StandIn",
    "products",
]

FIRST, EVALUATION, LINEARISED = "first evaluation", "evaluation", "evaluation in backward"
PRODUCT, PARAMETERS, HISTORY = "product", "parameters' gradient", "solver's history"
READOUT = "readout and loss"

WORKING, BACKWARD = 5, 4
"""States that a solve holds in addition to z0, f(z) and the history: the latest, previous and best
iterates and images; in the backward, iterates and images of u."""


@dataclass(frozen=True, kw_only=True)
class StandIn(Adjoint):
    """An adjoint whose solve is one evaluation of f, next to a history as large as the solver's.

    f is evaluated as in training: once with its graph, to find the tensors it closes over; once
    without, for the solver's evaluations, which are all alike; and in the backward with its graph,
    for one product with the transposed Jacobian and the gradient of the parameters. Repeating an
    evaluation needs no more memory than doing it once, apart from the history.

    Attributes:
        ledger: is told which part of the solve is running.
        solver: its history at `max_evals` is held in the forward.
        adjoint: the adjoint that is replaced.
        on_gpu: whether the solve checks its residuals block by block, and holds these iterates.
    """

    ledger: Ledger
    solver: Solver
    adjoint: Adjoint
    on_gpu: bool = False

    @property
    @override
    def derivative(self) -> Derivative:
        return JacobianFree()  # never used

    @property
    def real(self) -> Adjoint:
        """The adjoint whose costs count: for an audited one, the exact one it may switch to."""
        return self.adjoint.exact if isinstance(self.adjoint, Audited) else self.adjoint

    @override
    def find(self, equation: Nonlinear, z: Leaves, p: Leaves) -> Found:
        z, real = [leaf.detach() for leaf in z], self.real
        if isinstance(real, Unrolled):
            value = self._unrolled(equation, z, p, real)
            self.ledger.enter(READOUT)
            return _found(value)
        value = self._phantom(equation, z, p, real) if isinstance(real, Phantom) else None
        if value is None:
            own = [x.detach().requires_grad_(x.requires_grad) for x in p]
            with self.ledger.part(FIRST):
                out, equation.captured = capture(
                    lambda: equation.evaluate(z, own), [*z, *own], equation.expected
                )
            function: Any = _Solve
            everything = [*p, *equation.captured.values]
            image = [leaf.detach() for leaf in out]  # the solver's first evaluation
            del out
            value = list(function.apply(self, equation, len(z), *z, *everything))
            del image
        self.ledger.enter(READOUT)
        return _found(value)

    def _phantom(self, equation: Nonlinear, z: Leaves, p: Leaves, real: Phantom) -> Leaves:
        with torch.no_grad():
            kept = self.vectors(z, forward=True)
            with self.ledger.part(EVALUATION):
                value = equation.evaluate(z, p)
            del kept
        rest = 1 - real.damping
        for _ in range(real.steps):
            with self.ledger.part(LINEARISED):
                image = equation.evaluate(value, p)
                value = [rest * x + real.damping * y for x, y in zip(value, image, strict=True)]
        return value

    def _unrolled(self, equation: Nonlinear, z: Leaves, p: Leaves, real: Unrolled) -> Leaves:
        module: Any = checkpoint
        kept = self.vectors(z, forward=True)
        with self.ledger.part(EVALUATION):
            for _ in range(self.solver.max_evals):
                if real.checkpoint:
                    once: Any = lambda *state: tuple(equation.evaluate(list(state), p))  # noqa: E731
                    z = list(module.checkpoint(once, *z, use_reentrant=False))
                else:
                    z = equation.evaluate(z, p)
        del kept
        return z

    def vectors(self, z: Leaves, *, forward: bool) -> Leaves:
        """Allocate the history of the forward or the backward solve at its maximum size."""
        solver: Solver | LinearSolver | None = self.solver if forward else None
        if not forward and isinstance(self.real, Implicit):
            solver = self.real.linear
        room = Room() if solver is None else room_of(solver, solver.max_evals)
        if isinstance(solver, Dense):  # I - J itself, one row per entry of a sample
            room = Room(sum(leaf[0].numel() for leaf in z))
        count = room.lasting + (WORKING if forward else BACKWARD if solver else 0)
        count += 2 * BLOCK if self.on_gpu and forward else 0
        with self.ledger.part(HISTORY):
            passing = [leaf.new_empty(room.passing, *leaf.shape) for leaf in z]
            lasting = [leaf.new_empty(count, *leaf.shape) for leaf in z]
        del passing
        return lasting

    @property
    def shares(self) -> bool:
        """Whether the backward uses the history of the forward solve."""
        real = self.real
        return isinstance(real, Shine) or (isinstance(real, Implicit) and real.needs_inverse)


@dataclass(frozen=True)
class Room:
    """Memory of a solver's history, in units of the state.

    Attributes:
        lasting: held while f is evaluated.
        passing: temporary, in addition, between two evaluations.
    """

    lasting: int = 0
    passing: int = 0

    def __or__(self, other: Room) -> Room:
        """Return what is enough for both in sequence."""
        return Room(max(self.lasting, other.lasting), max(self.passing, other.passing))

    def __add__(self, other: Room) -> Room:
        return Room(self.lasting + other.lasting, self.passing + other.passing)


def room_of(solver: Solver | LinearSolver, evals: int) -> Room:
    """Return the memory of a solver's history after `evals` evaluations, its limit: as its
    docstring states, and the part of it that is held twice while it grows."""
    match solver:
        case (
            Anderson(history=history, period=period)
            | AlternatingAnderson(history=history, period=period)
        ):
            residuals = _grown(evals + 2, (history or evals) + 2)
            mixed = Room(0, 0 if period == 1 else min(history or evals, evals) + 1)
            return residuals + (_grown(evals, history or evals) | mixed)
        case Broyden(memory=memory):
            return _grown(evals, evals if memory is None else min(memory + 1, evals))
        case GMRES(restart=restart):
            products = max(1, min(restart, evals - 1))  # the last one measures
            return _grown(products + 1, products + 1)
        case Relay(first=first, last=last):
            half = evals // 2
            return room_of(first, half) | room_of(last, evals - half)
        case _:
            return Room(history_vectors(solver, evals))


def _grown(count: int, capacity: int) -> Room:
    """Return the storage for `count` vectors, and the previous one, from which they are copied."""
    most = min(count, capacity)
    size, before = room(1, capacity), 0
    while size < most:
        size, before = room(size + 1, capacity), size
    return Room(size, before)


def products(adjoint: Adjoint) -> int:
    """Return the maximum number of vector-Jacobian products of a backward."""
    match adjoint:
        case Audited():
            return products(adjoint.exact)
        case Implicit():
            return adjoint.linear.max_evals
        case NeumannPhantom():
            return adjoint.steps - 1
        case _:
            return 0


def _found(value: Leaves) -> Found:
    count = value[0].shape[0]
    number = value[0].detach().new_zeros(count)
    return Found(value, number.char(), number.long(), number, [])


class _Solve(torch.autograd.Function):
    """(owner, equation, leaves, *z0, *p) -> z*, by one evaluation; see `StandIn`."""

    @staticmethod
    def forward(
        ctx: Any, owner: StandIn, equation: Nonlinear, leaves: int, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        z, p = list(tensors[:leaves]), list(tensors[leaves:])
        kept = owner.vectors(z, forward=True)
        with owner.ledger.part(EVALUATION):
            image = equation.evaluate(z, p)
        ctx.kept = kept if owner.shares else None
        del kept
        value = tuple(x.clone() for x in image)
        ctx.owner, ctx.equation, ctx.leaves = owner, equation, leaves
        ctx.save_for_backward(*value, *p)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        owner, equation, leaves = ctx.owner, ctx.equation, ctx.leaves
        saved = ctx.saved_tensors
        z, p = list(saved[:leaves]), list(saved[leaves:])
        needed = list(ctx.needs_input_grad[3 + leaves :])
        u = [torch.zeros_like(x) if g is None else g for x, g in zip(z, grads, strict=True)]
        with owner.ledger.part(LINEARISED):
            jacobian = equation.linearise(z, p, needed)
        kept = owner.vectors(z, forward=False)
        with jacobian.held:
            with owner.ledger.part(PRODUCT):
                u = jacobian.transposed(u) if products(owner.adjoint) else u
            del kept
            with owner.ledger.part(PARAMETERS):
                found = jacobian.parameters(u)
        return (*[None] * (3 + leaves), *found)
