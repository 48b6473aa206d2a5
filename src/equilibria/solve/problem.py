"""The user's problem: f, with all that it takes to evaluate it again."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.boundary import AutocastRegion, enter_region, without_autocast
from equilibria.solve.capture import Captured, Recorder, require_known
from equilibria.solve.closure import Function
from equilibria.solve.derivative import FrozenParameter, GraphKeeper, Linearization
from equilibria.solve.equation import Axes, Equation, fold, fold_all
from equilibria.solve.estimate import WARNED_ERROR
from equilibria.solve.layout import Coupled, Groups, Layout
from equilibria.solve.loop import Run, is_far_off, iterate
from equilibria.solve.monitor import Terms
from equilibria.solve.rows import Rows, subtract
from equilibria.solve.solution import Record
from equilibria.solve.solvers import Solver
from equilibria.solve.status import describe_failure, raise_if_failed, warn
from equilibria.solve.tree import Leaves, Operands, Tree, describe, flatten, followable, unflatten
from equilibria.solve.verdict import Criterion, Measure, Reference

if TYPE_CHECKING:
    from equilibria.solve.adjoints import Adjoint

NEARBY = 1e-3
"""Relative change of the state that f is asked to show."""

TRACE_UNDER_VMAP = "trace=True has no meaning under torch.vmap: the mapped solves share one loop"


@dataclass
class Problem(Equation):
    """z = f(z, *operands), with the tensors that f closes over.

    Its parameters p are the operands' tensors, then the closed-over ones.

    Attributes:
        f: as given, of a state and operands as trees.
        state_spec: the structure of the state.
        autocast: the region that f was called in; every later evaluation enters it.
        has_aux: f returns something beside the state.
        expected: tensors that f closes over, whether its first evaluation uses them or not.
    """

    f: Function
    solver: Solver
    adjoint: Adjoint
    state_spec: pytree.TreeSpec
    operands: Operands
    autocast: AutocastRegion
    coupled: Coupled
    record: Record | None
    throw: bool = False
    drop_finished: bool = False
    trace: bool = False
    states: tuple[int, ...] = ()
    returns: str = "best"
    has_aux: bool = False
    expected: Sequence[Tensor] = ()
    captured: Captured = field(default_factory=Captured)

    @override
    def evaluate(self, z: Leaves, p: Leaves) -> Leaves:
        return self.evaluate_with_aux(z, p)[0]

    def evaluate_with_aux(self, z: Leaves, p: Leaves) -> tuple[Leaves, Tree]:
        """f, and what it returns beside the state: None without `has_aux`."""
        split = len(self.operands.slots)
        operands = p[:split]
        given = operands if self.operands.spec is None else self.operands.tree(operands)
        inputs = [*z, *operands]
        before = _versions(inputs)
        with self.captured.substitute(p[split:]), enter_region(self.autocast):
            try:
                out = self.f(unflatten(z, self.state_spec), *given)
            except RuntimeError as error:
                _add_remedy(error)
                raise
        if (after := _versions(inputs)) != before:
            number = next(i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b)
            what = "its state" if number < len(z) else f"operand tensor {number - len(z)}"
            raise RuntimeError(
                f"{self.letter} changed {what} in place: later evaluations still need it. Return "
                "a new tensor, by x + y in place of x.add_(y)"
            )
        aux = None
        if self.has_aux:
            if not (isinstance(out, tuple) and len(cast("tuple[Any, ...]", out)) == 2):
                raise TypeError(
                    f"{self.letter} returned {describe(out)}: with has_aux=True it returns a pair, "
                    "the state and something beside it"
                )
            out, aux = cast("tuple[Any, Any]", out)
        image = self._check_image(out, z)
        return [x - y for x, y in zip(z, image, strict=True)] if self.f.is_root else image, aux

    @property
    def letter(self) -> str:
        """What messages call f."""
        return "g" if self.f.is_root else "f"

    def evaluate_first(self, z: Leaves, p: Leaves) -> tuple[Leaves, Tree]:
        """The same where nothing is known of f yet: notes whether it computes in reduced
        precision."""
        with self.note_precision():
            return self.evaluate_with_aux(z, p)

    @contextmanager
    def note_precision(self) -> Generator[None]:
        """Notes whether f, evaluated inside, computes in reduced precision."""
        if not self.autocast.floor:
            yield
            return
        with Recorder() as recorder:
            yield
        self.captured.reduced |= recorder.reduced

    @override
    def evaluate_known(
        self, z: Leaves, p: Leaves, others: Leaves, used: Sequence[Tensor] = ()
    ) -> Leaves:
        if private.transform_active():  # whose wrappers hide the graph
            return self.evaluate(z, p)
        return require_known(lambda: self.evaluate(z, p), [*z, *p, *others], used)

    def _check_image(self, out: Tree, z: Leaves) -> Leaves:
        if (
            type(out) is Tensor
            and len(z) == 1
            and self.state_spec.is_leaf()
            and out.shape == z[0].shape
            and out.dtype == z[0].dtype
        ):
            return [out]
        leaves, spec = flatten(out)
        if spec != self.state_spec or not all(isinstance(leaf, Tensor) for leaf in leaves):
            f, pair = self.letter, isinstance(out, tuple) and len(cast("tuple[Any, ...]", out)) == 2
            beside = pair and not self.has_aux and flatten(out[0])[1] == self.state_spec
            raise TypeError(
                f"{f} returned {describe(out)} where the state is "
                f"{describe(unflatten(z, self.state_spec))}: {f} must return a state like the one "
                f"it is given{', or, with has_aux=True, it and something beside it' * beside}"
            )
        for position, (leaf, like) in enumerate(zip(leaves, z, strict=True)):
            if leaf.shape != like.shape:
                raise ValueError(
                    f"{self.letter} returned the shape {tuple(leaf.shape)} where the state "
                    f"(leaf {position}) has {tuple(like.shape)}"
                )
            if leaf.dtype != like.dtype:
                if not (self.autocast.enabled and leaf.dtype.is_floating_point):
                    raise TypeError(
                        f"{self.letter} returned {leaf.dtype} where the state (leaf {position}) is "
                        f"{like.dtype}: give it operands and parameters of the state's dtype, or "
                        "run it under torch.autocast"
                    )
                leaves[position] = leaf.to(like.dtype)
                self.captured.reduced = True
        return leaves

    @override
    def solve(self, z: Leaves, first: Leaves, p: Leaves) -> tuple[Layout, Run]:
        here = list(p)
        first = first or [x.detach() for x in self.evaluate_first(z, p)[0]]
        whole = layout = Layout.of(first, self.coupled).in_units_of(z, first)

        def rows_of_f(rows: Rows) -> Rows:
            image = self.evaluate(rows if layout.plain else layout.leaves(rows), here)
            if any(map(_REQUIRES_GRAD, image)):  # f may have worked under enable_grad
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
                    before=self._size_before(layout),
                    layout=layout,
                ),
                states=self.states,
                keeps_inverse=self.adjoint.needs_inverse,
                **how,
            )
        if self.throw:
            raise_if_failed(self.f.caller, run.status, run.reason, run.residual)
        if self.solver.error is None and is_far_off(run, lambda: self.criterion(layout)):
            warn(  # the same words each time, which Python then shows once
                f"{self.f.caller}: some samples CONVERGED whose estimated error (stats.error) is "
                f"more than {WARNED_ERROR:g} times the tolerance, which is one of the residual. If "
                "f is a small or damped step, take the longest one that is stable, and damp in the "
                "solver, not in f. Or limit the error, as in eq.Auto(error=1e-2), or tighten rtol"
            )
        return run

    def _size_before(self, layout: Layout) -> Tensor | None:
        """What the record of a warm start says, in the units of the rows."""
        size = None if self.record is None else self.record.size
        return size if size is None or layout.unit is None else size / layout.unit.squeeze(1)

    @property
    @override
    def floor(self) -> float:
        return self.autocast.floor if self.captured.reduced else 0.0

    @override
    def linearize(self, z: Leaves, p: Leaves, needed: Sequence[bool]) -> Linearization:
        own, split = self.leaves_for(p, needed), len(self.operands.slots)
        captured = self.captured
        pairs = zip(captured.originals, captured.values, needed[split:], strict=True)
        others = [x for original, value, need in pairs if not need for x in (original, value)]
        as_they_are = {id(x) for x in own[split:]}
        used = [x for x in captured.used if id(x) in as_they_are]

        def linearize(own: Leaves, used: Sequence[Tensor]) -> Linearization:
            return Linearization.at(
                lambda z, p: self.evaluate_known(z, p, others, used),
                z,
                own,
                needed,
                lambda: captured.substitute(own[split:]),
                self.f.enter_evaluation(),
            )

        with suppress(FrozenParameter):
            return linearize(own, used)
        own = super().leaves_for(p, needed)
        for i in captured.fixed:
            own[split + i] = captured.originals[i]
        return linearize(own, ())

    def linearize_state(self, z: Leaves, p: Leaves) -> Linearization:
        """The same for products with df/dz alone, at parameters that are used as they are."""
        p = [followable(x) for x in p]
        stand_ins = p[len(self.operands.slots) :]
        return Linearization.at(
            self.evaluate, z, p, around=lambda: self.captured.substitute(stand_ins)
        )

    @override
    def leaves_for(self, p: Leaves, needed: Sequence[bool]) -> Leaves:
        """A parameter of a module is used as it is, where that is right.

        One with hooks gets a stand-in, or the hooks would run inside the backward solve too; a
        tensor with a history gets one, or its history would be differentiated there too. What
        only scripted or compiled code sees can have none.
        """
        leaves = super().leaves_for(p, needed)
        split = len(self.operands.slots)
        captured = self.captured
        for i, (original, value) in enumerate(
            zip(captured.originals, captured.values, strict=True)
        ):
            hooks: Any = original._backward_hooks  # pyright: ignore[reportPrivateUsage]
            plain = needed[split + i] and original.is_leaf and original.requires_grad and not hooks
            if i in captured.fixed or (plain and value is original):
                leaves[split + i] = original
        return leaves

    @override
    def operand_count(self, p: Leaves) -> int:
        return len(self.operands.slots)

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
        if self.record is not None and self.record.size is not None:
            zero = Reference(self.record.size, now).is_zero(found.size, found.scale)
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

    def relative_residual(self, z: Leaves, value: Leaves) -> Tensor:
        """The relative residual of each sample, as the tolerance measures it; `value` is f(z)."""
        return self.measure(z, value).relative

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
    def require_substitutable(self) -> None:
        if self.captured.fixed:
            shapes = [tuple(self.captured.originals[i].shape) for i in sorted(self.captured.fixed)]
            raise RuntimeError(
                f"f uses tensors of shape {shapes} in scripted or compiled code: there is no "
                "second derivative, and no torch.func transform, with respect to them unless they "
                "are passed as operands (eq.shared(tensor))"
            )

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
        change = self.relative_residual(self.evaluate(z, p), self.evaluate(nearby, p))
        if private.some(change > NEARBY / 1000):
            warn(
                "f depends on its state, and autograd finds no dependence: without df/dz the "
                "gradient of the solution is wrong. f leaves autograd inside, by detach(), item(), "
                "float(), numpy, torch.no_grad() or a torch.autograd.grad without "
                "create_graph=True: compute with tensors there, and differentiate by "
                "torch.func.grad. eq.stability.compare_adjoints(layer, ...) says which derivatives "
                "are wrong"
            )


class _Mapped(Function):
    """f for all elements of an axis that torch.vmap maps, which joins the batch.

    The solver sees one larger batch of plain tensors. f is evaluated under torch.vmap, which alone
    knows what f does with operands and closed-over tensors that are mapped.

    Args:
        problem: that of one element.
        size: length of the mapped axis.
        axes: where the mapped axis is in the parameters.
    """

    closes_over = ()

    def __init__(
        self,
        problem: Problem,
        size: int,
        axes: Sequence[int | None],
    ) -> None:
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


def _add_remedy(error: RuntimeError) -> None:
    """Notes beside an error of torch.autograd in f what it means there."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is not None and trace.tb_frame.f_code.co_filename.startswith(_AUTOGRAD):
        note = (
            "f is evaluated without gradients in a solve, at a state that requires none: "
            "differentiate in it by torch.func.grad, or under torch.enable_grad() with respect to "
            "(z if z.requires_grad else z.detach().requires_grad_()) and with create_graph=True"
        )
        if note not in getattr(error, "__notes__", ()):
            error.add_note(note)


def _waves(like: Tensor) -> Tensor:
    """Numbers between -1 and 1 that no two entries share: no layer is invariant along them."""
    return torch.arange(like.numel(), device=like.device).to(like).cos().view_as(like)


_AUTOGRAD = os.path.dirname(torch.autograd.__file__)
_REQUIRES_GRAD = attrgetter("requires_grad")
_VERSION = attrgetter("_version")


def _versions(leaves: Leaves) -> list[int]:
    """Counts the changes in place that each leaf has seen."""
    try:
        return list(map(_VERSION, leaves))
    except RuntimeError:  # those made in inference mode count none
        return [0 if x.is_inference() else x._version for x in leaves]
