"""The phantom gradient along the path."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.adjoints.base import Adjoint
from equilibria.solve.adjoints.neumann import JacobianFree
from equilibria.solve.equation import Derivative, raise_if_failed
from equilibria.solve.growth import allowed, grown
from equilibria.solve.implicit import Found, solve
from equilibria.solve.nonlinear import Nonlinear
from equilibria.solve.rows import Layout, choose, ratio, relative_by_leaf, subtract
from equilibria.solve.solvers.base import Solver, check_damping, check_whole
from equilibria.solve.status import Status
from equilibria.solve.tolerance import length, ordered
from equilibria.solve.tree import Leaves
from equilibria.solve.worst import Worst


@dataclass(frozen=True, kw_only=True)
class Phantom(Adjoint):
    """The unrolling-based phantom gradient (UPG): `steps` damped iterations from the solution.

        z <- (1 - damping) z + damping f(z),  from z = z*, differentiated step by step.

    The value returned is the iterate after these steps, in training and evaluation alike; they are
    counted, and so is the evaluation that measures its residual. Where the steps arrive though the
    solve had not, f(z_0) is taken once more, and counted: CONVERGED asks for the size of f there
    (see `Limits`). The gradient is that of the
    truncated path: with r < 1 the norm of damping J + (1 - damping) I, its relative error is at
    most r^steps, and what z* lacks in accuracy the steps make up in part. So it is with states
    along the solver's path (`states`): each is the iterate after as many steps from there, as in
    the source's code. A loss of z with the gradient of f(z) would reward a step that overshoots,
    as long as z itself falls short. Memory: `steps` evaluations of f, and as many for each such
    state.

    Source: Bai 2022 (thesis), eq. 5.11 and Alg. 1; Geng et al. 2021.

    Attributes:
        steps: the k of the papers, >= 1.
        damping: their lambda, between 0 and 2, exclusive.
    """

    steps: int = 5
    damping: float = 0.5

    def __post_init__(self) -> None:
        check_whole(self, "steps", 1)
        check_damping(self)

    @property
    @override
    def derivative(self) -> Derivative:
        return JacobianFree()  # of a solution that is detached: nothing comes of it

    @override
    def find(self, equation: Nonlinear, z: Leaves, p: Leaves) -> Found:
        at = [leaf.detach() for leaf in z]
        quiet = replace(equation, throw=False)
        if private.transform_active():
            found = solve(quiet, at, p)
        else:
            with torch.no_grad():
                found = solve(quiet, at, p)
        everything = [*p, *quiet.captured.values]
        start = [leaf.detach() for leaf in found.value]
        layout = Layout.of(start, quiet.coupled)
        measured: list[_Measured] = []

        value = start
        for _ in range(self.steps):
            image = quiet.evaluate(value, everything)
            measured.append(_Measured.of(layout, value, image, quiet.solver))
            value = self._step(value, image)
        with torch.no_grad():
            image = quiet.evaluate(value, everything)
            measured.append(_Measured.of(layout, value, image, quiet.solver))

        end, solver = measured[-1], quiet.solver
        finite = torch.isfinite(end.size + end.scale)
        reached = end.reached
        solved = found.status == Status.CONVERGED
        evals = found.evals + self.steps + 1
        # A solution has been judged from the start; the steps may have left it since.
        begun = measured[0].start
        if private.some(reached & ~solved):
            with torch.no_grad():
                first = _Measured.of(layout, at, quiet.evaluate(at, everything), solver)
            begun = torch.where(solved, begun, first.start)
            evals = evals + (reached & ~solved)
        entries = [row.shape[1] for row in layout.rows(start)]
        absolute = length(ordered(solver.atol), entries) / math.sqrt(sum(entries))
        fallen = end.size <= allowed(end.scale, begun, absolute)
        reached = reached & (fallen | ~grown(end.scale, begun))
        ended = torch.where(solved, int(Status.MAX_EVALS), found.status)
        status = torch.where(reached, int(Status.CONVERGED), ended)
        status = torch.where(finite, status, int(Status.NONFINITE)).to(torch.int8)
        # A sample whose steps left the finite numbers keeps the solution that they began at.
        rows = choose(finite, layout.rows(value), layout.rows(start))
        run = Found(
            value=layout.leaves(rows),
            status=status,
            evals=evals,
            residual=torch.where(finite, end.relative, found.residual),
            states=[self._along(quiet, layout, state, everything) for state in found.states],
        )
        record = quiet.record
        if record is not None and record.trace is not None and record.leaf_trace is not None:
            record.trace = torch.cat([record.trace, torch.stack([m.relative for m in measured])])
            record.leaf_trace = torch.cat(
                [record.leaf_trace, torch.stack([m.each for m in measured])]
            )
        raise_if_failed(equation.throw, "fixed_point", run)
        return run

    def _along(self, equation: Nonlinear, layout: Layout, state: Leaves, p: Leaves) -> Leaves:
        """The iterate after as many steps from a state of the path, where it is finite."""
        start = value = [leaf.detach() for leaf in state]
        for _ in range(self.steps):
            value = self._step(value, equation.evaluate(value, p))
        finite = torch.isfinite(layout.norm(layout.rows([leaf.detach() for leaf in value])))
        return layout.leaves(choose(finite, layout.rows(value), layout.rows(start)))

    def _step(self, z: Leaves, image: Leaves) -> Leaves:
        pairs = zip(z, image, strict=True)
        return [(1 - self.damping) * x + self.damping * y for x, y in pairs]


@dataclass(frozen=True)
class _Measured:
    """||f(z) - z||, ||f(z)||, the relative residual, the same for each leaf, and whether the
    tolerance is met."""

    size: Tensor
    scale: Tensor
    relative: Tensor
    each: Tensor
    reached: Tensor

    @classmethod
    def of(cls, layout: Layout, z: Leaves, image: Leaves, solver: Solver) -> _Measured:
        at = layout.rows([x.detach() for x in z])
        there = layout.rows([x.detach() for x in image])
        gap = subtract(there, at)
        size, scale, each = layout.norm(gap), layout.norm(there), relative_by_leaf(gap, there)
        rtol, atol = ordered(solver.rtol), ordered(solver.atol)
        worst = Worst.of(layout, gap, there, rtol, atol, per_row=solver.per_row)
        if worst is not None:
            merit = solver.by_leaf or atol
            reached = worst.merit <= 1.0 if merit else worst.relative <= solver.finest
            return cls(size, scale, worst.relative, each, reached)
        assert not isinstance(rtol, tuple) and not isinstance(atol, tuple)
        relative = ratio(gap, there)
        reached = relative <= rtol
        if atol:
            reached = reached | (size <= atol + rtol * scale)
        return cls(size, scale, relative, each, reached)

    @property
    def start(self) -> Tensor:
        """What growth is measured from, if the steps begin here."""
        return torch.maximum(self.size, self.scale)
