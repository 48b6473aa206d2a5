"""Adjoints by which autograd follows a path: after the solution, or the solver's own."""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils import checkpoint as _checkpoint
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.adjoints import Adjoint
from equilibria.solve.boundary import boundary
from equilibria.solve.convergence import Measure, Reference
from equilibria.solve.function import capture_and_solve
from equilibria.solve.layout import Layout
from equilibria.solve.loop import Run
from equilibria.solve.options import damping_field, flag_field, whole_field
from equilibria.solve.problem import TRACE_UNDER_VMAP, Problem
from equilibria.solve.rows import Rows, choose, length, relative_by_leaf, subtract
from equilibria.solve.status import Status, raise_if_failed
from equilibria.solve.tree import Leaves


@dataclass(frozen=True, kw_only=True)
class Phantom(Adjoint):
    """The unrolling-based phantom gradient (UPG): `steps` damped iterations from the solution.

        z <- (1 - damping) z + damping f(z),  from z = z*, differentiated step by step.

    The value returned is the iterate after these steps, in training and evaluation alike; they are
    counted, and so is the evaluation that measures its residual. Where the steps arrive though the
    solve had not, f(z_0) is taken once more, and counted: CONVERGED asks for the size of f there
    (see `Limits`). The gradient is that of the truncated path: with r < 1 the norm of
    damping J + (1 - damping) I, its relative error is at most r^steps, and the steps make up in
    part for what z* lacks in accuracy. A state along the solver's path (`states`) is the iterate
    after as many steps from there, as in the source's code. A loss of z with the gradient of f(z)
    would reward a step that overshoots, as long as z itself falls short. Memory: `steps`
    evaluations of f, and as many for each such state.

    Source: Bai 2022 (thesis), eq. 5.11 and Alg. 1; Geng et al. 2021.

    Attributes:
        steps: the k of the papers, >= 1.
        damping: their lambda, between 0 and 2, exclusive.
    """

    follows_path: ClassVar[bool] = True
    steps: int = whole_field(5, 1)
    damping: float = damping_field(0.5)

    @override
    def find(self, problem: Problem, z: Leaves, p: Leaves) -> Run:
        if problem.solver.error is not None:
            raise ValueError(
                f"Phantom: error={problem.solver.error:g} can't be judged after its steps, which "
                "leave the solution: leave it out, or use eq.Implicit() or eq.NeumannPhantom()"
            )
        at = [leaf.detach() for leaf in z]
        throw, problem = problem.throw, replace(problem, throw=False)  # the steps may arrive
        with nullcontext() if private.transform_active() else torch.no_grad():
            found = capture_and_solve(problem, at, p)
        everything = [*p, *problem.captured.values]
        start = [leaf.detach() for leaf in found.value]
        layout = Layout.of(start, problem.coupled).in_units_of(start, at)
        criterion = problem.criterion(layout)
        measured: list[Measure] = []
        by_leaf: list[Tensor] = []

        def measure(z: Leaves, image: Leaves) -> Measure:
            here, there = (layout.rows([x.detach() for x in each]) for each in (z, image))
            gap = subtract(there, here)
            by_leaf.append(relative_by_leaf(gap, there))
            return criterion.measure_exactly(gap, there)

        value = start
        for _ in range(self.steps):
            image = problem.evaluate(value, everything)
            measured.append(measure(value, image))
            value = self._step(value, image)
        with torch.no_grad():
            image = problem.evaluate(value, everything)
            measured.append(measure(value, image))
        trace = {"trace": [m.relative for m in measured], "leaf_trace": list(by_leaf)}

        end, rows = measured[-1], layout.rows(start)
        finite = torch.isfinite(end.size + end.scale)
        reached = criterion.has_converged(end, None, rows)
        solved = found.status == Status.CONVERGED
        evals = found.evals + self.steps + 1
        # A solution has been judged from the start; the steps may have left it since.
        begun = Reference.at(measured[0].size, measured[0].scale)
        if private.some(reached & ~solved):
            with torch.no_grad():
                first = measure(at, problem.evaluate(at, everything))
            origin = Reference.at(first.size, first.scale)
            begun = Reference(
                torch.where(solved, begun.size, origin.size),
                torch.where(solved, begun.residual, origin.residual),
            )
            evals = evals + (reached & ~solved)
        reached = criterion.has_converged(end, begun, rows)
        ended = torch.where(solved, int(Status.MAX_EVALS), found.status)
        status = torch.where(reached, int(Status.CONVERGED), ended)
        status = torch.where(finite, status, int(Status.NONFINITE)).to(torch.int8)
        # A sample whose steps left the finite numbers keeps the solution that they began at.
        rows = choose(finite, layout.rows(value), layout.rows(start))
        run = Run(
            value=layout.leaves(rows),
            status=status,
            reason=torch.where(solved | reached, 0, found.reason).to(torch.int8),
            evals=evals,
            residual=torch.where(finite, end.relative, found.residual),
            states=tuple(self._along(problem, layout, s, everything) for s in found.states),
        )
        record = problem.record
        if record is not None and "trace" in record.extras:
            for name, rows in trace.items():
                record.extras[name] = torch.cat([record.extras[name], torch.stack(rows)])
        if throw:
            raise_if_failed(problem.f.caller, run.status, run.reason, run.residual)
        return run

    def _along(self, equation: Problem, layout: Layout, state: Leaves, p: Leaves) -> Leaves:
        """The iterate after as many steps from a state of the path, where it is finite."""
        start = value = [leaf.detach() for leaf in state]
        for _ in range(self.steps):
            value = self._step(value, equation.evaluate(value, p))
        rows = layout.rows(value)
        finite = torch.isfinite(length([row.detach() for row in rows]))
        return layout.leaves(choose(finite, rows, layout.rows(start)))

    def _step(self, z: Leaves, image: Leaves) -> Leaves:
        pairs = zip(z, image, strict=True)
        return [(1 - self.damping) * x + self.damping * y for x, y in pairs]


@dataclass(frozen=True, kw_only=True)
class Unrolled(Adjoint):
    """Differentiates the solver's own iterations (backpropagation through time).

    The value is z_k, to which all k evaluations have led, by plain iteration f(z_{k-1}); f is not
    evaluated there, so that `status` and `stats.residual` are those of z_{k-1}. (Where f is not
    finite there, z_{k-1} is the value too.) The gradient is exact for that value, to any order, and
    the start z0 gets its gradient too. Memory grows with every evaluation; with `checkpoint`, by
    the iterates alone, and f is evaluated twice.

    Attributes:
        max_evals: the k of every sample where f is finite, whatever the tolerances say, >= 0, in
            place of the solver's `max_evals`; 0 gives z0. None: a path ends as the solver's limits
            say, sample by sample.
        checkpoint: keep the iterates only and evaluate f again in backward.
    """

    follows_path: ClassVar[bool] = True
    max_evals: int | None = whole_field(None, 0)
    checkpoint: bool = flag_field(False)

    @override
    def find(self, problem: Problem, z: Leaves, p: Leaves) -> Run:
        transformed = private.transform_active()
        if problem.trace and any(private.is_mapped(x) for x in [*z, *p]):
            raise RuntimeError(TRACE_UNDER_VMAP)
        if self.checkpoint and transformed:
            raise RuntimeError(
                "Unrolled(checkpoint=True) can't be used under torch.func: torch's checkpointing "
                "is not made for its transforms. Use Unrolled()"
            )
        layout, solver = Layout.of(z, problem.coupled), problem.solver
        if self.max_evals == 0:
            return self._start(problem, layout, z)
        exactly = self.max_evals is not None
        if exactly:
            solver = replace(solver, max_evals=self.max_evals, patience=None)
        problem = replace(problem, solver=solver, returns="next")
        module: Any = _checkpoint

        def rows_of_f(rows: Rows) -> Rows:
            state = layout.leaves(rows)
            if self.checkpoint:
                once = _Checkpointed(problem, p)
                return layout.rows(list(module.checkpoint(once, *state, use_reentrant=False)))
            return layout.rows(problem.evaluate(state, p))

        with problem.note_precision():
            first = rows_of_f(layout.rows(z))
        layout = layout.in_units_of(z, layout.leaves(first))
        start = layout.rows(z)
        if layout.unit is not None:
            first = [row / layout.unit for row in first]
        run = problem.search(
            rows_of_f, start, first, layout, tracked=private.differentiates(), exactly=exactly
        )
        if problem.record is not None:
            problem.record.note(run, layout)
        return Run(
            # The caller may change it in place, and f may have returned a tensor of its own.
            value=[x.clone() for x in layout.leaves(run.value)],
            status=run.status,
            reason=run.reason,
            evals=run.evals,
            residual=run.residual.detach(),
            states=tuple(layout.leaves(rows) for rows in run.states),
        )

    def _start(self, problem: Problem, layout: Layout, z: Leaves) -> Run:
        """z0, of which nothing is known."""
        residual = torch.full_like(length(layout.rows([x.detach() for x in z])), math.inf)
        status = torch.full_like(residual, int(Status.MAX_EVALS), dtype=torch.int8)
        nothing, value = torch.zeros_like(status), [x.clone() for x in z]
        if problem.throw:
            raise_if_failed(problem.f.caller, status, nothing, residual)
        evals = nothing.to(torch.int64)
        return Run(value, status, nothing, evals, residual, tuple(z for _ in problem.states))


class _Checkpointed:
    """One evaluation of f, which backward repeats: it must then be the same function."""

    def __init__(self, equation: Problem, p: Leaves) -> None:
        self.equation = equation
        self.p = p
        self.residual: Tensor | None = None

    @boundary
    def __call__(self, *state: Tensor) -> tuple[Tensor, ...]:
        function: Any = _Watched
        value = self.equation.evaluate(list(state), self.p)
        return function.apply(self, state, *value)

    def watch(self, z: Leaves, value: Leaves) -> None:
        if self.residual is None:
            self.residual = self.equation.measure(z, value).relative
        else:
            self.equation.require_same(z, value, self.residual)


class _Watched(torch.autograd.Function):
    """f(z), looked at. It saves a tensor, though an empty one, for a checkpoint stops its second
    evaluation where the last saved tensor is found again."""

    @staticmethod
    def forward(owner: _Checkpointed, z: tuple[Tensor, ...], *value: Tensor) -> tuple[Tensor, ...]:
        owner.watch(list(z), list(value))
        return tuple(x.view_as(x) for x in value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(output[0].new_empty(0))

    @staticmethod
    @boundary
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        assert ctx.saved_tensors  # which makes the checkpoint evaluate again
        return (None, None, *grads)

    @staticmethod
    def jvp(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, owner: None, z: None, *tangents: Tensor
    ) -> tuple[Tensor, ...]:
        return tuple(t.view_as(t) for t in tangents)
