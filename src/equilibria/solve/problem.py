"""The user's problem: z = f(z), and how it is to be solved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.boundary import without_autocast
from equilibria.solve.capture import Captured
from equilibria.solve.closure import UserFunction
from equilibria.solve.convergence import Criterion, Measure, Reference
from equilibria.solve.derivative import GraphKeeper
from equilibria.solve.equation import Axes, Equation, fold, fold_all
from equilibria.solve.layout import Coupled, Groups, Layout
from equilibria.solve.loop import Run, iterate, warn_if_far_off
from equilibria.solve.map import UserMap
from equilibria.solve.monitor import Terms
from equilibria.solve.rows import Rows, subtract
from equilibria.solve.solution import Record
from equilibria.solve.solvers import Solver
from equilibria.solve.status import describe_failure, raise_if_failed, warn
from equilibria.solve.tree import REQUIRES_GRAD, Leaves, Operands, flatten

if TYPE_CHECKING:
    from equilibria.solve.adjoints import Adjoint

NEARBY = 1e-3
"""Relative change of the state that f is asked to show."""

TRACE_UNDER_VMAP = "trace=True has no meaning under torch.vmap: the mapped solves share one loop"


@dataclass(kw_only=True)
class Problem(UserMap):
    """z = f(z, *operands), and how it is solved and differentiated: see `fixed_point`."""

    solver: Solver
    adjoint: Adjoint
    coupled: Coupled
    record: Record | None
    throw: bool = False
    drop_finished: bool = False
    trace: bool = False
    states: tuple[int, ...] = ()
    returns: str = "best"

    @override
    def solve(self, z: Leaves, first: Leaves, p: Leaves) -> tuple[Layout, Run]:
        here = list(p)
        first = first or [x.detach() for x in self.evaluate_first(z, p)[0]]
        whole = layout = Layout.of(first, self.coupled).in_units_of(z, first)

        def rows_of_f(rows: Rows) -> Rows:
            image = self.evaluate_with_aux(rows if layout.plain else layout.leaves(rows), here)[0]
            if any(map(REQUIRES_GRAD, image)):  # f may have worked under enable_grad
                image = [x.detach() for x in image]
            return image if layout.plain else layout.rows(image)

        def leave(index: Tensor) -> None:
            nonlocal layout
            layout = layout.select(index)
            for position, has_batch in enumerate(self.operands.per_batch):
                if has_batch:
                    here[position] = here[position].index_select(0, index)
            jacobian.select(layout)

        jacobian = GraphKeeper(layout, rows_of_f, lambda at: self.linearize_state(at, list(here)))
        start = layout.rows(z), layout.rows(first)
        with self.f.enter_evaluation():
            run = self.search(
                jacobian.evaluate,
                *start,
                layout,
                leave=leave if self.drop_finished and not self.adjoint.needs_inverse else None,
                jacobian=jacobian,
            )
        if self.record is not None:
            self.record.note(run, whole)
        return whole, run

    def search(
        self,
        evaluate: Callable[[Rows], Rows],
        z: Rows,
        first: Rows,
        layout: Layout,
        *,
        tracked: bool = False,
        exactly: bool = False,
        **how: Any,
    ) -> Run:
        """Runs the solver on `evaluate`; `how` as `iterate` takes it."""
        # What the record of a warm start says, in the units of the rows.
        size = None if self.record is None else self.record.warm_size
        if size is not None and layout.unit is not None:
            size = size / layout.unit.squeeze(1)
        with without_autocast(self.autocast.device):
            run = iterate(
                self.solver.no_finer_than(self.floor),
                evaluate,
                z,
                first,
                Terms(
                    trace=self.trace,
                    tracked=tracked,
                    returns=self.returns,
                    exactly=exactly,
                    before=size,
                    layout=layout,
                ),
                states=self.states,
                keeps_inverse=self.adjoint.needs_inverse,
                **how,
            )
        if self.throw:
            raise_if_failed(self.f.caller, run.status, run.reason, run.residual)
        if self.solver.error is None:
            advice = (
                "If f is a small or damped step, take the longest one that is stable, and damp in "
                "the solver, not in f. Or limit the error, as in eq.Auto(error=1e-2), or tighten "
                "rtol"
            )
            warn_if_far_off(run, lambda: self.criterion(layout), self.f.caller, advice)
        return run

    @override
    def require_same(self, z: Leaves, value: Leaves, residual: Tensor | None = None) -> None:
        if residual is None and self.record is not None:
            residual = self.record.residual
        if residual is None:
            return
        found = self.measure(z, value)
        now = found.relative
        changed = (now - residual).abs() > self._bound_rounding(z[0])
        if not private.some(changed):  # as it mostly goes
            return
        changed = changed & torch.isfinite(residual)
        if self.record is not None and self.record.start_size is not None:
            zero = Reference(self.record.start_size, now).is_zero(found.size, found.scale)
            changed = changed & ~(zero & (residual == 0))
        if private.some(changed):
            now, residual, changed = (private.bare(x).flatten() for x in (now, residual, changed))
            worst = int(torch.where(changed, (now - residual).abs(), 0).argmax())
            raise RuntimeError(
                f"in backward f is another function than in the forward: at the solution of sample "
                f"{worst} its relative residual was {float(residual[worst]):.1e} and is now "
                f"{float(now[worst]):.1e}. Has a parameter, a buffer or a variable that f uses "
                "changed in between, or does f draw random numbers? If f mixes the samples of a "
                "batch, solve them together with coupled=True"
            )

    def measure(self, z: Leaves, value: Leaves, layout: Layout | None = None) -> Measure:
        """The residuals of z, of which `value` is the image; None: as it lies."""
        layout = Layout.of(z, self.coupled) if layout is None else layout
        at, image = (layout.rows([x.detach() for x in leaves]) for leaves in (z, value))
        return self.criterion(layout).measure_exactly(subtract(image, at), image)

    def criterion(self, layout: Layout) -> Criterion:
        """The solver's tolerance for a state that lies in rows like this."""
        return Criterion.of(self.solver.no_finer_than(self.floor), layout)

    def _bound_rounding(self, like: Tensor) -> float:
        """Change of a relative residual that may be rounding alone: f's kernels may differ with the
        samples in the batch, and with autograd's following them."""
        if self.autocast.enabled and self.autocast.dtype.itemsize < 4:
            return 0.02
        # In a single row more of f(z) may cancel than in all together.
        more = 30.0 if self.solver.per_row else 1.0
        if like.dtype == torch.float64:
            return more * 1e-7
        reduced = like.device.type != "cpu" or torch.get_float32_matmul_precision() != "highest"
        return more * (5e-3 if reduced else 3e-4)  # TF32 has the digits of half precision

    @override
    def fold_axis(
        self, size: int, z: Leaves, first: Leaves, p: Leaves, axes: Axes
    ) -> tuple[Equation, Leaves, Leaves, Leaves]:
        if self.trace:
            raise RuntimeError(TRACE_UNDER_VMAP)
        self.require_substitutable()
        groups = self.coupled
        mapped = replace(
            self,
            f=_Mapped(self, size, axes.p),
            state_spec=flatten(z)[1],
            operands=Operands.of_tensors(len(p)),
            coupled=groups.repeat(size) if isinstance(groups, Groups) else False,
            drop_finished=False,
            has_aux=False,
            record=None,
            expected=(),
            captured=Captured(reduced=self.captured.reduced),
        )
        z, first = (
            fold_all(leaves, where, size, groups)
            for leaves, where in ((z, axes.z), (first, axes.first))
        )
        return mapped, z, first, p

    @override
    def report_unsolved(self, status: Tensor, reason: Tensor, residual: Tensor) -> None:
        if self.adjoint.fixed_steps or not private.some(status):  # CONVERGED is 0
            return
        problem = describe_failure(self.f.caller, status, reason, residual)
        if problem is not None:
            warn(
                f"{problem}\nGradients of these samples are unreliable: their states are not fixed "
                "points. Pass throw=True for an error in place of this warning"
            )

    @override
    def report_cut(self, z: Leaves, p: Leaves, evals: Tensor) -> None:
        if not private.some(evals != 2):
            return
        # A damped solve of a constant takes more, and so does a step function, whose derivative is
        # zero: neither changes with z here.
        nearby = [x + NEARBY * x * _waves(x) for x in z]
        change = self.measure(self.evaluate(z, p), self.evaluate(nearby, p)).relative
        if private.some(change > NEARBY / 1000):
            warn(
                "f depends on its state, and autograd finds no dependence: without df/dz the "
                "gradient of the solution is wrong. f leaves autograd inside, by detach(), item(), "
                "float(), numpy, torch.no_grad() or a torch.autograd.grad without "
                "create_graph=True: compute with tensors there, and differentiate by "
                "torch.func.grad. eq.stability.compare_adjoints(layer, ...) says which derivatives "
                "are wrong"
            )


class _Mapped(UserFunction):
    """f for all elements of an axis that torch.vmap maps, which joins the batch.

    The solver sees one larger batch of plain tensors. f is evaluated under torch.vmap, which alone
    knows what f does with operands and closed-over tensors that are mapped.

    Args:
        problem: that of one element.
        size: length of the mapped axis.
        axes: where the mapped axis is in the parameters.
    """

    closes_over = ()

    def __init__(self, problem: Problem, size: int, axes: Sequence[int | None]) -> None:
        self.problem = problem
        self.caller = problem.f.caller
        self.size = size
        self.axes = list(axes)

    def __call__(self, z: Leaves, *p: Tensor) -> Leaves:
        of_all = torch.vmap(self.problem.evaluate, in_dims=([0] * len(z), self.axes))
        whole = self.problem.coupled is True
        size = self.size, -1
        elements: Leaves = [x if whole else x.unflatten(0, size) for x in z]  # pyright: ignore
        found = of_all(elements, list(p))
        return [fold(x, 0, self.size, self.problem.coupled) for x in found]

    @override
    def enter_evaluation(self) -> AbstractContextManager[None]:
        return self.problem.f.enter_evaluation()


def _waves(like: Tensor) -> Tensor:
    """Numbers between -1 and 1 that no two entries share: no layer is invariant along them."""
    return torch.arange(like.numel(), device=like.device).to(like).cos().view_as(like)
