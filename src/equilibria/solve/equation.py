"""The equation z = f(z; p), as the derivatives see it, and the linear equations of derivatives.

All equations evaluate a state (a list of leaves) at parameters p (a flat list of tensors). Whoever
differentiates needs no more of them.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.boundary import without_autocast
from equilibria.solve.convergence import Criterion
from equilibria.solve.derivative import Linearization, TensorFunction, pullback, pushforward
from equilibria.solve.layout import Coupled, Layout
from equilibria.solve.linear import LinearSolver, iterate_affine
from equilibria.solve.loop import Run, warn_if_far_off
from equilibria.solve.rows import Rows, choose, largest_of, length, unit_of
from equilibria.solve.solution import AdjointInfo, Record
from equilibria.solve.solvers import Solver
from equilibria.solve.status import Reason, Stats, Status, describe_failure, raise_if_failed, warn
from equilibria.solve.tree import Leaves

if TYPE_CHECKING:
    from equilibria.solve.adjoints import Adjoint


class Equation(abc.ABC):
    """z = evaluate(z, p).

    Attributes:
        coupled: the batch is one sample, or its groups of rows are.
        throw: a solve that does not converge raises.
        adjoint: how its solution is differentiated.
        record: where solves report; None: nowhere.
    """

    coupled: Coupled
    throw: bool
    adjoint: Adjoint
    record: Record | None

    @abc.abstractmethod
    def evaluate(self, z: Leaves, p: Leaves) -> Leaves:
        """f, as a function of its inputs alone."""

    def evaluate_known(
        self, z: Leaves, p: Leaves, others: Leaves, used: Sequence[Tensor] = ()
    ) -> Leaves:
        """The same, tracked, where f shows again all that it depends on: z, p and what no
        derivative is wanted of, `others`.

        Raises:
            RuntimeError: f depends on a tensor that it did not use at its first evaluation.
            FrozenParameter: it does not depend on one of the leaves `used`.
        """
        del others, used
        return self.evaluate(z, p)

    @abc.abstractmethod
    def solve(self, z: Leaves, first: Leaves, p: Leaves) -> tuple[Layout, Run]:
        """Solves on plain tensors, untracked. `first` is f(z), or empty where it is not known."""

    @abc.abstractmethod
    def fold_axis(
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

    def require_same(self, z: Leaves, value: Leaves, residual: Tensor | None = None) -> None:
        """Raises RuntimeError where f is another function than it was in the forward.

        An affine one asks its parent, whenever it is evaluated.

        Args:
            z: the solution, or tensors of its values.
            value: f(z) now.
            residual: what was measured there in the forward; None: what the record says.
        """
        del z, value, residual

    def report_unsolved(self, status: Tensor, reason: Tensor, residual: Tensor) -> None:
        """Warns with `SolveWarning` where the solution that is differentiated is none.

        An affine one has warned when it was solved.
        """
        del status, reason, residual

    def report_cut(self, z: Leaves, p: Leaves, evals: Tensor) -> None:
        """Warns with `SolveWarning` where f depends on z, and autograd has found that it does not.

        An affine one is differentiated as f is.

        Args:
            evals: evaluations of each sample in the forward. A constant f takes two, by a solver
                that does not damp; of a single one, at a solution found elsewhere, nothing follows.
        """
        del z, p, evals

    @property
    def floor(self) -> float:
        """The relative residual that the rounding of f leaves, where it exceeds the state's."""
        return 0.0

    def operand_count(self, p: Leaves) -> int:
        """How many of the parameters, from the first, have a gradient even if f ignores them."""
        return len(p)

    def linearize(self, z: Leaves, p: Leaves, needed: Sequence[bool]) -> Linearization:
        """Evaluates once, tracked, and keeps the graph for products with the Jacobian."""
        return Linearization.at(self.evaluate, z, self.leaves_for(p, needed), needed)

    def leaves_for(self, p: Leaves, needed: Sequence[bool]) -> Leaves:
        """Leaves that stand for the parameters in a graph of its own."""
        return [x.detach().requires_grad_(need) for x, need in zip(p, needed, strict=True)]


class LinearSystem(NamedTuple):
    """u = A u + g, the linear system of a derivative at the solution z of an equation.

    Attributes:
        transposed: A is J^T, as for the adjoint, with J = df/dz; or J, as for the tangent.
        graph: for products with J^T that need not be differentiated again; None: what is found is
            to be differentiable in all that it depends on.
    """

    equation: Equation
    z: Leaves
    p: Leaves
    transposed: bool = True
    graph: Linearization | None = None

    def product(self, v: Leaves) -> Leaves:
        """A v."""
        if self.graph is not None:
            assert self.transposed  # tangents are found without a graph, see `FixedPoint.jvp`
            return self.graph.multiply_transposed(v)
        evaluate, p = self.equation.evaluate, self.p
        return multiply(lambda *z: tuple(evaluate(list(z), p)), self.z, v, self.transposed)


def multiply(f: TensorFunction, z: Leaves, v: Leaves, transposed: bool) -> Leaves:
    """J^T v, or J v, with J = df/dz; both can be differentiated."""
    return pullback(f, z, v) if transposed else pushforward(f, z, v, like=z)


@dataclass(frozen=True)
class Axes:
    """Positions of a mapped axis in the inputs of an equation."""

    z: Sequence[int | None]
    first: Sequence[int | None]
    p: Sequence[int | None]


def fold(x: Tensor, axis: int | None, size: int, coupled: Coupled) -> Tensor:
    """`(batch, ...)` with a mapped axis -> `(size * batch, ...)`.

    A coupled batch is one sample: there the mapped axis becomes the axis of samples.
    """
    x = x.unsqueeze(0).expand(size, *x.shape) if axis is None else x.movedim(axis, 0)
    return x if coupled is True else x.reshape(size * x.shape[1], *x.shape[2:])


def fold_all(tensors: Leaves, axes: Sequence[int | None], size: int, coupled: Coupled) -> Leaves:
    return [fold(x, axis, size, coupled) for x, axis in zip(tensors, axes, strict=True)]


@dataclass(kw_only=True)
class Affine(Equation):
    """u = J^T u + c, or t = J t + c: J is the Jacobian df/dz of `parent` at z.

    Its parameters are what u depends on: z, the parameters of the parent, and c. It is an equation
    like any other, so its own derivatives, and theirs, follow by the same rule.

    Attributes:
        transposed: J^T (the adjoint's equation) or J (the tangent's).
        solution_record: that of the solution whose adjoint this is.
        count: leaves of the state.
        rtol: `(samples,)`, each sample's relative tolerance, in place of the solver's.
    """

    parent: Equation
    solver: LinearSolver | Solver
    transposed: bool
    adjoint: Adjoint
    count: int
    solution_record: Record | None = None
    rtol: Tensor | None = None

    def __post_init__(self) -> None:
        self.record = None  # its own backward solves are no solution's
        self.coupled = self.parent.coupled
        self.throw = self.parent.throw

    def _unpack(self, p: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        n = self.count
        return p[:n], p[n:-n], p[-n:]

    @override
    def evaluate(self, z: Leaves, p: Leaves) -> Leaves:
        at, parameters, constant = self._unpack(p)

        def of_state(*state: Tensor) -> tuple[Tensor, ...]:
            value = self.parent.evaluate(list(state), parameters)
            self.parent.require_same(list(state), value)
            return tuple(value)

        product = multiply(of_state, at, z, self.transposed)
        return [a + b for a, b in zip(product, constant, strict=True)]

    @property
    @override
    def floor(self) -> float:
        return self.parent.floor

    @override
    def solve(self, z: Leaves, first: Leaves, p: Leaves) -> tuple[Layout, Run]:
        at, parameters, constant = self._unpack(p)
        # Compiled code can be differentiated once, and J t takes it twice.
        with nullcontext() if self.transposed else private.run_eagerly():
            jacobian = self.parent.linearize(at, parameters, [False] * len(parameters))
        self.parent.require_same(at, jacobian.value)
        with jacobian.per_solve:
            return self.solve_with(jacobian, constant)

    def solve_with(self, jacobian: Linearization, constant: Leaves) -> tuple[Layout, Run]:
        """Solves, given the graph that the products are taken from.

        Warns with `SolveWarning`, or raises `SolveError` under `throw`, where it does not converge.
        """
        layout = Layout.of(constant, self.coupled)
        by = jacobian.multiply_transposed if self.transposed else jacobian.multiply

        def product(rows: Rows) -> Rows:
            return layout.rows(by(layout.leaves(rows)))

        g = layout.rows(constant)
        unit, broken = self._unit(layout, g), None
        if unit is not None or self.solver.atol:  # else all entries are within the range
            broken = ~torch.isfinite(largest_of(g))
            g = [torch.where(broken.unsqueeze(1), 0.0, row) for row in g]
        if unit is not None:
            g = [row / unit for row in g]
        with without_autocast(constant[0].device.type):
            begin = self._start(layout, g, unit)
            if isinstance(self.solver, LinearSolver):
                run = self.solver.solve(product, g, begin, rtol=self.rtol)
            else:
                run = iterate_affine(self.solver, product, g, begin, self.rtol, layout)
        if unit is not None:
            run = replace(run, value=[row * unit for row in run.value])
        if broken is not None and private.some(broken):
            run = self._pass_on(run, broken, layout.rows(constant))
        if self.solution_record is not None:
            stats = Stats(
                evals=run.evals, residual=run.residual, reason=run.reason, _course=run.course
            )
            self.solution_record.latest = AdjointInfo(run.status, stats, layout.leaves(run.value))
        what = "the adjoint's backward solve" if self.transposed else "the tangent's solve"
        failed = (run.status != Status.CONVERGED) & (run.reason != Reason.GRADIENT)
        outcome = run.status, run.reason, run.residual
        if self.throw and private.some(failed):
            raise_if_failed(what, *outcome)
        if (problem := describe_failure(what, *outcome)) is not None:
            warn(f"{problem}\nDerivatives of these samples are inexact.")
        if self.solver.error is None:
            advice = (
                "df/dz has an eigenvalue near 1, and the derivative may be wrong. Tighten rtol of "
                "the linear solver, or limit the error, as in "
                "eq.Implicit(linear=eq.GMRES(error=1e-2))"
            )
            criterion = partial(Criterion.of, self.solver, layout, self.rtol)
            warn_if_far_off(run, criterion, what, advice)
        return layout, run

    def _pass_on(self, run: Run, broken: Tensor, g: Rows) -> Run:
        """Without a solve for samples whose incoming gradient is not finite: a loss that has
        overflowed is for its gradient scaler to find."""
        return replace(
            run,
            value=choose(broken, g, run.value),
            status=torch.where(broken, int(Status.NONFINITE), run.status).to(torch.int8),
            reason=torch.where(broken, int(Reason.GRADIENT), run.reason).to(torch.int8),
            residual=torch.where(broken, torch.inf, run.residual),
        )

    def _unit(self, layout: Layout, g: Rows) -> Tensor | None:
        """What the constant term is divided by `(samples, 1)`; None: nothing."""
        if not self.solver.atol:
            return unit_of(g)
        if layout.fill_ratio is None or not isinstance(self.solver, LinearSolver):
            return None
        # For an absolute tolerance over the whole row to be one over what a sample fills of it.
        return layout.fill_ratio.unsqueeze(1)

    def _start(self, layout: Layout, g: Rows, unit: Tensor | None) -> Rows | None:
        """The adjoint of an earlier solution; zero where that says nothing about this one."""
        if self.solution_record is None or self.solution_record.warm_adjoint is None:
            return None
        start = [
            x.to(y) for x, y in zip(layout.rows(self.solution_record.warm_adjoint), g, strict=True)
        ]
        if unit is not None:
            start = [row / unit for row in start]
        usable = torch.isfinite(length(start)) & (length(g) > 0)
        return choose(usable, start, [torch.zeros_like(x) for x in g])

    @override
    def fold_axis(
        self, size: int, z: Leaves, first: Leaves, p: Leaves, axes: Axes
    ) -> tuple[Equation, Leaves, Leaves, Leaves]:
        n = self.count
        at, parameters, constant = self._unpack(p)
        parent, at, _, parameters = self.parent.fold_axis(
            size, at, [], parameters, Axes(axes.p[:n], [], axes.p[n:-n])
        )
        constant = fold_all(constant, axes.p[-n:], size, self.coupled)
        start = fold_all(z, axes.z, size, self.coupled)
        folded = Affine(
            parent=parent,
            solver=self.solver,
            transposed=self.transposed,
            adjoint=self.adjoint,
            count=n,
        )
        return folded, start, [], [*at, *parameters, *constant]

    @override
    def require_substitutable(self) -> None:
        self.parent.require_substitutable()
