"""The equation z = f(z; p), as the solvers and the derivatives see it.

All equations, the user's and the linear ones of its derivatives, evaluate a state (a list of
leaves) at parameters p (a flat list of tensors). Whoever differentiates needs no more of them.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.derivative import Linearisation
from equilibria.solve.grouping import Coupled
from equilibria.solve.loop import Run
from equilibria.solve.rows import Layout, Rows
from equilibria.solve.solvers import Inverse, Jacobian
from equilibria.solve.status import SolveError, Stats, describe_failure, warn
from equilibria.solve.tree import Leaves


class Equation(abc.ABC):
    """z = evaluate(z, p).

    Attributes:
        coupled: the batch is one sample, or its groups of rows are.
        throw: a solve that does not converge raises.
        derivative: how its solution is differentiated.
        record: where solves report; None: nowhere.
    """

    coupled: Coupled
    throw: bool
    derivative: Derivative
    record: Record | None

    @abc.abstractmethod
    def evaluate(self, z: Leaves, p: Leaves) -> Leaves:
        """f, as a function of its inputs alone."""

    def evaluate_known(self, z: Leaves, p: Leaves, others: Leaves) -> Leaves:
        """The same, tracked, where f shows again all that it depends on: z, p and what no
        derivative is wanted of, `others`.

        Raises:
            RuntimeError: f depends on a tensor that it did not use at its first evaluation.
        """
        del others
        return self.evaluate(z, p)

    @abc.abstractmethod
    def solve(self, z: Leaves, first: Leaves, p: Leaves) -> tuple[Layout, Run]:
        """Solves on plain tensors, untracked. `first` is f(z), or empty where it is not known."""

    @abc.abstractmethod
    def batched(
        self, size: int, z: Leaves, first: Leaves, p: Leaves, axes: Axes
    ) -> tuple[Equation, Leaves, Leaves, Leaves]:
        """The equation of all elements of a mapped axis together, and its z, first and p.

        Args:
            size: length of the mapped axis.
            axes: where that axis is in each of `z`, `first` and `p`; None where it is not.
        """

    @abc.abstractmethod
    def require_substitutable(self) -> None:
        """Raises RuntimeError where a stand-in could not take the place of what f closes over."""

    @abc.abstractmethod
    def require_same(self, z: Leaves, value: Leaves, residual: Tensor | None = None) -> None:
        """Raises RuntimeError where f is another function than it was in the forward.

        Args:
            z: the solution, or tensors of its values.
            value: f(z) now.
            residual: what was measured there in the forward; None: what the record says.
        """

    @abc.abstractmethod
    def report_unsolved(self, status: Tensor, reason: Tensor, residual: Tensor) -> None:
        """Warns with `SolveWarning` where the solution that is differentiated is none."""

    @property
    def floor(self) -> float:
        """The relative residual that the rounding of f leaves, where it exceeds the state's."""
        return 0.0

    def operand_count(self, p: Leaves) -> int:
        """How many of the parameters, from the first, have a gradient even if f ignores them."""
        return len(p)

    @property
    def recorded(self) -> tuple[int, ...]:
        """The evaluations after which a solve returns the iterate."""
        return ()

    def linearise(self, z: Leaves, p: Leaves, needed: Sequence[bool]) -> Linearisation:
        """Evaluates once, tracked, and keeps the graph for products with the Jacobian."""
        return Linearisation.at(self.evaluate, z, self.leaves_for(p, needed))

    def linearise_state(self, z: Leaves, p: Leaves) -> Linearisation:
        """The same for products with df/dz alone, at parameters that are used as they are."""
        return Linearisation.at(
            self.evaluate, [followable(x) for x in z], [followable(x) for x in p]
        )

    def leaves_for(self, p: Leaves, needed: Sequence[bool]) -> Leaves:
        """Leaves that stand for the parameters in a graph of its own."""
        return [x.detach().requires_grad_(need) for x, need in zip(p, needed, strict=True)]


class StateEquation(Equation):
    """An equation that a forward solver solves."""

    @override
    def report_unsolved(self, status: Tensor, reason: Tensor, residual: Tensor) -> None:
        if self.derivative.fixed_steps:
            return
        if not private.some(status):  # CONVERGED is 0
            return
        status, reason, residual = (private.bare(x) for x in (status, reason, residual))
        with private.outside_transforms():
            problem = describe_failure("fixed_point", status, reason, residual)
        if problem is not None:
            warn(
                f"{problem}\nGradients of these samples are unreliable: their states are not fixed "
                "points. Pass throw=True for an error in place of this warning"
            )

    @abc.abstractmethod
    def search(
        self,
        evaluate: Callable[[Rows], Rows],
        z: Rows,
        first: Rows | None,
        *,
        jacobian: Jacobian | None = None,
        layout: Layout | None = None,
    ) -> Run:
        """Runs the solver on `evaluate`, with all samples staying in the batch."""


class Derivative(abc.ABC):
    """How the solution of an equation depends on what f depends on: exactly, or inexactly."""

    @property
    def fixed_steps(self) -> bool:
        """Is it a fixed number of steps, for states that may be short of a solution?"""
        return False

    @property
    def needs_inverse(self) -> bool:
        """Is (I - J)^-1 wanted, as the forward solver has learned it, in the record?"""
        return False

    @abc.abstractmethod
    def first_order(self, equation: Equation, jacobian: Linearisation, g: Leaves) -> Leaves:
        """u = (I - J)^-T g, or what stands for it, not to be differentiated again."""

    @abc.abstractmethod
    def cotangent(self, equation: Equation, z: Leaves, p: Leaves, g: Leaves) -> Leaves:
        """The same, differentiable."""

    @abc.abstractmethod
    def tangent(self, equation: Equation, z: Leaves, p: Leaves, c: Leaves) -> Leaves:
        """(I - J)^-1 c, or what stands for it, differentiable."""


@dataclass(frozen=True)
class AdjointInfo:
    """The latest first-order backward solve of a solution.

    Attributes:
        status: `(batch,)` int8, how it ended for each sample.
        stats: vector-Jacobian products and relative residual of each sample.
        value: u, leaf by leaf.
    """

    status: Tensor
    stats: Stats
    value: Leaves = field(repr=False)


class Record:
    """What solves leave behind beside the graph: traces, and the backward solve's outcome.

    Of an earlier solution, `start` is the adjoint, where the backward solve begins, and `size` that
    of the start, see `Reference`.
    """

    def __init__(self, start: Leaves | None = None, size: Tensor | None = None) -> None:
        self.start = start
        self.size = size
        self.latest: AdjointInfo | None = None
        self.residual: Tensor | None = None
        self.inverse: tuple[Layout, Inverse] | None = None
        self.trace: Tensor | None = None
        self.leaf_trace: Tensor | None = None
        self.ritz: Tensor | None = None
        self.choices: Tensor | None = None

    def note(self, run: Run, layout: Layout) -> None:
        """Keeps what a forward solve tells beside the solution."""
        self.trace, self.leaf_trace = run.trace, run.leaf_trace
        self.ritz, self.choices = run.ritz, run.choices
        self.residual = run.residual
        if run.size is not None:
            self.size = run.size if layout.unit is None else run.size * layout.unit.squeeze(1)
        self.inverse = None if run.inverse is None else (layout, run.inverse)


@dataclass(frozen=True)
class Axes:
    """Positions of a mapped axis in the inputs of an equation."""

    z: Sequence[int | None]
    first: Sequence[int | None]
    p: Sequence[int | None]


def followable(x: Tensor) -> Tensor:
    """x, as a tensor that autograd may follow where it was made in inference mode."""
    return x.clone() if x.is_inference() else x


def fold(x: Tensor, axis: int | None, size: int, coupled: Coupled) -> Tensor:
    """`(batch, ...)` with a mapped axis -> `(size * batch, ...)`.

    A coupled batch is one sample: there the mapped axis becomes the axis of samples.
    """
    x = x.unsqueeze(0).expand(size, *x.shape) if axis is None else x.movedim(axis, 0)
    return x if coupled is True else x.reshape(size * x.shape[1], *x.shape[2:])


def fold_all(tensors: Leaves, axes: Sequence[int | None], size: int, coupled: Coupled) -> Leaves:
    return [fold(x, axis, size, coupled) for x, axis in zip(tensors, axes, strict=True)]


class Ended(Protocol):
    """What has a status and a residual for each sample."""

    @property
    def status(self) -> Tensor: ...
    @property
    def reason(self) -> Tensor: ...
    @property
    def residual(self) -> Tensor: ...


def raise_if_failed(throw: bool, what: str, run: Ended) -> None:
    if throw:
        each = [private.bare(x) for x in (run.status, run.reason, run.residual)]
        with private.outside_transforms():
            problem = describe_failure(what, *each)
        if problem is not None:
            raise SolveError(problem)
