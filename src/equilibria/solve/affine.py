"""The linear equations of the derivatives."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.boundary import without_autocast
from equilibria.solve.derivative import KnownProduct, Linearisation, pullback, pushforward
from equilibria.solve.equation import (
    AdjointInfo,
    Axes,
    Derivative,
    Equation,
    Record,
    fold_all,
    raise_if_failed,
)
from equilibria.solve.linear import LinearSolver, affine
from equilibria.solve.loop import Run, iterate
from equilibria.solve.rows import Layout, Rows, choose, largest_of, length, unit_of
from equilibria.solve.solvers import Solver
from equilibria.solve.status import Reason, Stats, Status, describe_failure, warn
from equilibria.solve.tree import Leaves


@dataclass
class Affine(Equation):
    """u = J^T u + c, or t = J t + c: J is the Jacobian df/dz of `parent` at z.

    Its parameters are what u depends on: z, the parameters of the parent, and c. It is an equation
    like any other, so its own derivatives, and theirs, follow by the same rule.

    Attributes:
        transposed: J^T (the adjoint's equation) or J (the tangent's).
        report: the record of the solution whose adjoint this is.
        count: leaves of the state.
        rtol: `(samples,)`, each sample's relative tolerance, in place of the solver's.
    """

    parent: Equation
    solver: LinearSolver | Solver
    transposed: bool
    derivative: Derivative
    count: int
    report: Record | None = None
    rtol: Tensor | None = None

    def __post_init__(self) -> None:
        self.record = None  # its own backward solves are no solution's
        self.coupled = self.parent.coupled
        self.throw = self.parent.throw

    def _split(self, p: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        n = self.count
        return p[:n], p[n:-n], p[-n:]

    @override
    def evaluate(self, z: Leaves, p: Leaves) -> Leaves:
        at, parameters, constant = self._split(p)

        def of_state(*state: Tensor) -> tuple[Tensor, ...]:
            value = self.parent.evaluate(list(state), parameters)
            self.parent.require_same(list(state), value)
            return tuple(value)

        if self.transposed:
            product = pullback(of_state, at, z)
        else:
            product = pushforward(of_state, at, z, like=at)
        return [a + b for a, b in zip(product, constant, strict=True)]

    @property
    @override
    def floor(self) -> float:
        return self.parent.floor

    @override
    def solve(self, z: Leaves, first: Leaves, p: Leaves) -> tuple[Layout, Run]:
        at, parameters, constant = self._split(p)
        jacobian = self.parent.linearise(at, parameters, [False] * len(parameters))
        self.parent.require_same(at, jacobian.value)
        with jacobian.held:
            return self.solve_with(jacobian, constant)

    def solve_with(self, jacobian: Linearisation, constant: Leaves) -> tuple[Layout, Run]:
        """Solves, given the graph that the products are taken from.

        Warns with `SolveWarning`, or raises `SolveError` under `throw`, where it does not converge.
        """
        layout = Layout.of(constant, self.coupled)
        multiply = jacobian.transposed if self.transposed else jacobian.direct

        def product(rows: Rows) -> Rows:
            return layout.rows(multiply(layout.leaves(rows)))

        g = layout.rows(constant)
        unit, broken = self._unit(layout, g), None
        if unit is not None or self.solver.atol:  # else all entries are within the range
            broken = ~torch.isfinite(largest_of(g))
            g = [torch.where(broken.unsqueeze(1), 0.0, row) for row in g]
        if unit is not None:
            g = [row / unit for row in g]
        with without_autocast(constant[0].device.type):
            begin = self._start(layout, g, unit)
            if not isinstance(self.solver, LinearSolver):
                run = iterate(
                    self.solver,
                    affine(product, g),
                    g if begin is None else begin,
                    jacobian=KnownProduct(product),
                    rtol=self.rtol,
                    origin=length(g),
                    layout=layout,
                )
            else:
                run = self.solver.solve(product, g, begin, rtol=self.rtol)
        if unit is not None:
            run = replace(run, value=[row * unit for row in run.value])
        if broken is not None and private.some(broken):
            run = self._passed_on(run, broken, layout.rows(constant))
        if self.report is not None:
            stats = Stats(evals=run.evals, residual=run.residual, reason=run.reason)
            self.report.latest = AdjointInfo(run.status, stats, layout.leaves(run.value))
        what = "the adjoint's backward solve" if self.transposed else "the tangent's solve"
        failed = (run.status != Status.CONVERGED) & (run.reason != Reason.GRADIENT)
        raise_if_failed(self.throw and private.some(failed), what, run)
        problem = describe_failure(what, run.status, run.reason, run.residual)
        if problem is not None:
            warn(f"{problem}\nDerivatives of these samples are inexact.")
        return layout, run

    def _passed_on(self, run: Run, broken: Tensor, g: Rows) -> Run:
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
        if layout.filled is None or not isinstance(self.solver, LinearSolver):
            return None
        # For an absolute tolerance over the whole row to be one over what a sample fills of it.
        return layout.filled.unsqueeze(1)

    def _start(self, layout: Layout, g: Rows, unit: Tensor | None) -> Rows | None:
        """The adjoint of an earlier solution; zero where that says nothing about this one."""
        if self.report is None or self.report.start is None:
            return None
        start = [x.to(y) for x, y in zip(layout.rows(self.report.start), g, strict=True)]
        if unit is not None:
            start = [row / unit for row in start]
        usable = torch.isfinite(length(start)) & (length(g) > 0)
        return choose(usable, start, [torch.zeros_like(x) for x in g])

    @override
    def batched(
        self, size: int, z: Leaves, first: Leaves, p: Leaves, axes: Axes
    ) -> tuple[Equation, Leaves, Leaves, Leaves]:
        n = self.count
        at, parameters, constant = self._split(p)
        parent, at, _, parameters = self.parent.batched(
            size, at, [], parameters, Axes(axes.p[:n], [], axes.p[n:-n])
        )
        constant = fold_all(constant, axes.p[-n:], size, self.coupled)
        start = fold_all(z, axes.z, size, self.coupled)
        folded = Affine(parent, self.solver, self.transposed, self.derivative, n)
        return folded, start, [], [*at, *parameters, *constant]

    @override
    def require_same(self, z: Leaves, value: Leaves, residual: Tensor | None = None) -> None:
        """Nothing to say: the parent is asked whenever it is evaluated."""

    @override
    def report_unsolved(self, status: Tensor, reason: Tensor, residual: Tensor) -> None:
        """Nothing to say: its solve has warned."""

    @override
    def require_substitutable(self) -> None:
        self.parent.require_substitutable()
