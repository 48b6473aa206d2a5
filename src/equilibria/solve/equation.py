"""The equation z = f(z; p), as the solvers and the derivatives see it.

Both kinds of equation, the user's and the linear one of its adjoint, evaluate a state (a list of
leaves) at parameters p (a flat list of tensors: operands, then closed-over tensors). Whoever
differentiates needs nothing else of them.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equilibria.solve.capture import Captured, substituted
from equilibria.solve.derivative import Linearisation, pullback, pushforward
from equilibria.solve.linear import LinearSolver, affine
from equilibria.solve.loop import Run, iterate
from equilibria.solve.rows import Layout, Rows
from equilibria.solve.solvers import Solver
from equilibria.solve.status import SolveError, SolveWarning, Stats, describe_failure
from equilibria.solve.tree import Leaves, Shared, Tree, flatten, unflatten

if TYPE_CHECKING:
    from torch.utils._pytree import TreeSpec


@dataclass(frozen=True)
class AdjointInfo:
    """The latest first-order backward solve of a solution.

    Attributes:
        status: `(batch,)` int8, how it ended for each sample.
        stats: vector-Jacobian products and relative residual of each sample.
    """

    status: Tensor
    stats: Stats
    value: Leaves = field(repr=False)


class Record:
    """What solves leave behind beside the graph: traces, and the backward solve's outcome.

    `start` is the adjoint of an earlier solution, where the backward solve begins.
    """

    def __init__(self, start: Leaves | None = None) -> None:
        self.latest: AdjointInfo | None = None
        self.start = start
        self.trace: Tensor | None = None
        self.leaf_trace: Tensor | None = None


class Equation(abc.ABC):
    """z = evaluate(z, p)."""

    coupled: bool
    throw: bool
    record: Record | None
    adjoint: Adjoint

    @abc.abstractmethod
    def evaluate(self, z: Leaves, p: Leaves) -> Leaves:
        """f, as a function of its inputs alone."""

    @abc.abstractmethod
    def solve(self, z: Leaves, first: Leaves, p: Leaves) -> tuple[Layout, Run]:
        """Solves on plain tensors, untracked. `first` is f(z), or empty where it is not known."""

    @abc.abstractmethod
    def batched(
        self, size: int, z: Leaves, first: Leaves, p: Leaves, axes: Axes
    ) -> tuple[Equation, Leaves, Leaves, Leaves]:
        """The equation of all elements of a mapped axis together, and its inputs.

        Args:
            size: length of the mapped axis.
            axes: where that axis is in each of `z`, `first` and `p`; None where it is not.
        """

    def linearise(self, z: Leaves, p: Leaves, needed: Sequence[bool]) -> Linearisation:
        """Evaluates once, tracked, and keeps the graph for products with the Jacobian."""
        return Linearisation(self.evaluate, z, [self._own(x, n) for x, n in zip(p, needed, strict=True)])

    def _own(self, tensor: Tensor, needed: bool) -> Tensor:
        return tensor.detach().requires_grad_(needed)

    @abc.abstractmethod
    def require_substitutable(self) -> None:
        """Raises RuntimeError where a stand-in could not take the place of what f closes over."""


class Adjoint(abc.ABC):
    """How the solution of an equation is differentiated; see `equilibria.solve.adjoints`."""

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
class Axes:
    """Positions of a mapped axis in the inputs of an equation."""

    z: Sequence[int | None]
    first: Sequence[int | None]
    p: Sequence[int | None]


@dataclass
class Nonlinear(Equation):
    """The user's equation.

    Attributes:
        f: as given, of a state and operands as trees.
        state_spec, operand_spec: the structure of z and of the operands.
        operands: the operands' leaves; tensors among them are the first `len(slots)` entries of p.
        slots: positions of those tensors.
        per_batch: which of them have the batch as their first axis.
        captured: what f closes over; the rest of p.
        autocast: the autocast regions that f was called in; every later evaluation enters them.
    """

    f: Callable[..., Tree]
    solver: Solver
    state_spec: TreeSpec
    operand_spec: TreeSpec
    operands: list[Any]
    slots: list[int]
    per_batch: list[bool]
    autocast: list[AutocastRegion]
    coupled: bool
    per_sample: bool
    throw: bool
    trace: bool
    states: tuple[int, ...]
    adjoint: Adjoint
    record: Record | None = None
    captured: Captured = field(default_factory=lambda: Captured([], set()))

    def evaluate(self, z: Leaves, p: Leaves) -> Leaves:
        split = len(self.slots)
        operands = list(self.operands)
        for slot, tensor in zip(self.slots, p[:split], strict=True):
            operands[slot] = tensor
        given = unflatten(operands, self.operand_spec)
        with substituted(self.captured.originals, p[split:]), entered(self.autocast):
            out = self.f(unflatten(z, self.state_spec), *given)
        return self._checked(out, z)

    def _checked(self, out: Tree, z: Leaves) -> Leaves:
        leaves, spec = flatten(out)
        if spec != self.state_spec or not all(isinstance(leaf, Tensor) for leaf in leaves):
            raise ValueError(
                f"f returned the structure {spec} where the state has {self.state_spec}: "
                "f must return a state like the one it is given"
            )
        reduced = any(region.enabled for region in self.autocast)
        for position, (leaf, like) in enumerate(zip(leaves, z, strict=True)):
            if leaf.shape != like.shape:
                raise ValueError(
                    f"f returned the shape {tuple(leaf.shape)} where the state "
                    f"(leaf {position}) has {tuple(like.shape)}"
                )
            if leaf.dtype != like.dtype:
                if not (reduced and leaf.dtype.is_floating_point):
                    raise TypeError(
                        f"f returned {leaf.dtype} where the state (leaf {position}) is "
                        f"{like.dtype}: give f operands and parameters of the state's dtype, or "
                        "run it under torch.autocast"
                    )
                leaves[position] = leaf.to(like.dtype)
        return leaves

    def solve(self, z: Leaves, first: Leaves, p: Leaves) -> tuple[Layout, Run]:
        layout = Layout.of(first or z, self.coupled)
        here = list(p)

        def rows_of_f(rows: Rows) -> Rows:
            return layout.rows(self.evaluate(layout.leaves(rows), here))

        def leave(index: Tensor) -> None:
            for position, has_batch in enumerate(self.per_batch):
                if has_batch:
                    here[position] = here[position].index_select(0, index)

        with autocast_off(self.autocast):
            run = iterate(
                self.solver,
                rows_of_f,
                layout.rows(z),
                layout.rows(first) if first else None,
                trace=self.trace,
                states=self.states,
                leave=leave if self.per_sample else None,
            )
        raise_if_failed(self.throw, "fixed_point", run)
        return layout, run

    def _own(self, tensor: Tensor, needed: bool) -> Tensor:
        # A parameter is used as it is; one with hooks gets a stand-in, or the hooks would run
        # inside the backward solve too. A tensor with a history gets one, or the history would.
        plain_leaf = tensor.is_leaf and not tensor._backward_hooks  # pyright: ignore
        if needed and plain_leaf and any(tensor is own for own in self.captured.originals):
            return tensor
        if any(
            tensor is own
            for position, own in enumerate(self.captured.originals)
            if position in self.captured.fixed
        ):
            return tensor
        return super()._own(tensor, needed)

    def require_substitutable(self) -> None:
        if self.captured.fixed:
            shapes = [tuple(self.captured.originals[i].shape) for i in sorted(self.captured.fixed)]
            raise RuntimeError(
                f"f uses tensors of shape {shapes} in scripted or compiled code: there is no "
                "second derivative, and no torch.func transform, with respect to them unless they "
                "are passed as operands (eq.shared(tensor))"
            )

    def batched(
        self, size: int, z: Leaves, first: Leaves, p: Leaves, axes: Axes
    ) -> tuple[Equation, Leaves, Leaves, Leaves]:
        if self.trace:
            raise RuntimeError(
                "trace=True has no meaning under torch.vmap: the mapped solves share one loop"
            )
        self.require_substitutable()
        return Mapped.of(self, size, z, first, p, axes)


def fold(x: Tensor, axis: int | None, size: int, coupled: bool) -> Tensor:
    """`(batch, ...)` with a mapped axis -> `(size * batch, ...)`.

    A coupled batch is one sample: there the mapped axis becomes the axis of samples.
    """
    x = x.unsqueeze(0).expand(size, *x.shape) if axis is None else x.movedim(axis, 0)
    return x if coupled else x.reshape(size * x.shape[1], *x.shape[2:])


def fold_all(
    tensors: Leaves, axes: Sequence[int | None], size: int, coupled: bool
) -> Leaves:
    return [fold(x, axis, size, coupled) for x, axis in zip(tensors, axes, strict=True)]


@dataclass
class Mapped(Equation):
    """An equation under torch.vmap: its mapped axis joins the batch.

    The solver sees one larger batch of plain tensors; f is evaluated under torch.vmap, which alone
    knows what f does with operands and closed-over tensors that are mapped.
    """

    inner: Equation
    size: int
    shapes: list[tuple[int, ...]]
    axes: Sequence[int | None]

    @classmethod
    def of(
        cls, inner: Equation, size: int, z: Leaves, first: Leaves, p: Leaves, axes: Axes
    ) -> tuple[Mapped, Leaves, Leaves, Leaves]:
        """See `Equation.batched`."""
        shapes = [
            tuple((x if axis is None else x.select(axis, 0)).shape)
            for x, axis in zip(z, axes.z, strict=True)
        ]
        return (
            cls(inner, size, shapes, axes.p),
            fold_all(z, axes.z, size, inner.coupled),
            fold_all(first, axes.first, size, inner.coupled),
            p,
        )

    def __post_init__(self) -> None:
        self.throw = self.inner.throw
        self.adjoint = self.inner.adjoint
        self.coupled = False
        self.record = None

    def require_substitutable(self) -> None:
        self.inner.require_substitutable()

    def unfold(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        return x.reshape(self.size, *shape)

    def evaluate(self, z: Leaves, p: Leaves) -> Leaves:
        mapped = torch.vmap(self.inner.evaluate, in_dims=([0] * len(z), list(self.axes)))
        unfolded = [self.unfold(x, shape) for x, shape in zip(z, self.shapes, strict=True)]
        return [fold(x, 0, self.size, self.inner.coupled) for x in mapped(unfolded, p)]

    def solve(self, z: Leaves, first: Leaves, p: Leaves) -> tuple[Layout, Run]:
        base: Any = self.inner
        while isinstance(base, Mapped):
            base = base.inner
        layout = Layout.of(first or z)

        def rows_of_f(rows: Rows) -> Rows:
            return layout.rows(self.evaluate(layout.leaves(rows), p))

        with autocast_off(base.autocast):
            run = iterate(
                base.solver,
                rows_of_f,
                layout.rows(z),
                layout.rows(first) if first else None,
                states=base.states,
            )
        raise_if_failed(self.throw, "fixed_point", run)
        return layout, run

    def batched(
        self, size: int, z: Leaves, first: Leaves, p: Leaves, axes: Axes
    ) -> tuple[Equation, Leaves, Leaves, Leaves]:
        return Mapped.of(self, size, z, first, p, axes)


@dataclass
class Linear(Equation):
    """u = J^T u + c, or t = J t + c: J is the Jacobian df/dz of `parent` at z.

    Its parameters are those that u depends on: z, the parameters of the parent, and c. It is an
    equation like any other, so that its own derivatives, and theirs, follow by the same rule.
    """

    parent: Equation
    solver: LinearSolver | Solver
    transposed: bool
    throw: bool
    adjoint: Adjoint
    count: int  # leaves of the state
    record: Record | None = None

    def __post_init__(self) -> None:
        self.coupled = self.parent.coupled

    def _split(self, p: Leaves) -> tuple[Leaves, Leaves, Leaves]:
        n = self.count
        return p[:n], p[n:-n], p[-n:]

    def evaluate(self, u: Leaves, p: Leaves) -> Leaves:
        z, parameters, constant = self._split(p)

        def at(*state: Tensor) -> tuple[Tensor, ...]:
            return tuple(self.parent.evaluate(list(state), parameters))

        product = pullback(at, z, u) if self.transposed else pushforward(at, z, u, like=z)
        return [a + b for a, b in zip(product, constant, strict=True)]

    def solve(self, z: Leaves, first: Leaves, p: Leaves) -> tuple[Layout, Run]:
        at, parameters, constant = self._split(p)
        jacobian = self.parent.linearise(at, parameters, [False] * len(parameters))
        return self.solve_with(jacobian, constant)

    def require_substitutable(self) -> None:
        self.parent.require_substitutable()

    def solve_with(self, jacobian: Linearisation, constant: Leaves) -> tuple[Layout, Run]:
        layout = Layout.of(constant, self.coupled)
        multiply = jacobian.transposed if self.transposed else jacobian.direct

        def product(rows: Rows) -> Rows:
            return layout.rows(multiply(layout.leaves(rows)))

        g = layout.rows(constant)
        start = None if self.record is None else self.record.start
        begin = None if start is None else layout.rows(start)
        with autocast_off_for(constant):
            if isinstance(self.solver, LinearSolver):
                run = self.solver.solve(product, g, begin)
            else:
                run = iterate(self.solver, affine(product, g), g if begin is None else begin)
        what = "the adjoint's backward solve" if self.transposed else "the tangent's solve"
        raise_if_failed(self.throw, what, run)
        problem = describe_failure(what, run.status, run.residual)
        if problem is not None:
            warnings.warn(
                f"{problem}\nThe derivatives of these samples are inexact.",
                SolveWarning,
                stacklevel=2,
            )
        if self.record is not None:
            self.record.latest = AdjointInfo(
                run.status, Stats(evals=run.evals, residual=run.residual), layout.leaves(run.value)
            )
        return layout, run

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
        folded = Linear(
            parent, self.solver, self.transposed, self.throw, self.adjoint, n
        )
        return folded, start, [], [*at, *parameters, *constant]


def raise_if_failed(throw: bool, what: str, run: Run) -> None:
    if throw:
        problem = describe_failure(what, run.status, run.residual)
        if problem is not None:
            raise SolveError(problem)


@dataclass(frozen=True)
class AutocastRegion:
    """The autocast setting of one device type, as f met it."""

    device: str
    dtype: torch.dtype
    enabled: bool

    @classmethod
    def current(cls, device: str) -> AutocastRegion:
        return cls(device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device))


@contextmanager
def entered(regions: Sequence[AutocastRegion]) -> Iterator[None]:
    """Evaluates f in the regions that it was first called in, wherever that is.

    Without autocast's cache of cast weights: it keeps a cast made under no_grad, and a weight read
    from it later would have no gradient.
    """
    regions = [r for r in regions if r.enabled or torch.is_autocast_enabled(r.device)]
    if not regions:
        yield
        return
    (region, *others) = regions
    with (
        torch.autocast(region.device, region.dtype, region.enabled, cache_enabled=False),
        entered(others),
    ):
        yield


@contextmanager
def autocast_off(regions: Sequence[AutocastRegion]) -> Iterator[None]:
    """A solver's own arithmetic stays in the state's dtype."""
    active = [r for r in regions if torch.is_autocast_enabled(r.device)]
    if not active:
        yield
        return
    with torch.autocast(active[0].device, enabled=False), autocast_off(active[1:]):
        yield


def autocast_off_for(leaves: Leaves) -> Any:
    return autocast_off([AutocastRegion.current(leaves[0].device.type)])


def operand_leaves(
    operands: Sequence[Tree], batch: int
) -> tuple[list[Any], TreeSpec, list[int], list[bool]]:
    """Flattens operands; unwraps what is shared; checks the batch axis of the rest.

    Returns:
        All leaves, their structure, the positions of tensors, and which of those have a batch axis.

    Raises:
        ValueError: an operand that is not shared has another first axis than the batch.
    """
    plain = [x.value if isinstance(x, Shared) else x for x in operands]
    leaves, spec = flatten(tuple(plain))
    slots: list[int] = []
    per_batch: list[bool] = []
    position = 0
    for number, (operand, tree) in enumerate(zip(operands, plain, strict=True)):
        for leaf in flatten(tree)[0]:
            if isinstance(leaf, Shared):
                raise TypeError(
                    f"operand {number} has eq.shared(...) inside a tree: wrap the whole operand, "
                    "or pass its shared part as an operand of its own"
                )
            if isinstance(leaf, Tensor):
                has_batch = not isinstance(operand, Shared)
                if has_batch and (leaf.dim() == 0 or leaf.shape[0] != batch):
                    raise ValueError(
                        f"operand {number} has the shape {tuple(leaf.shape)}: its first axis must "
                        f"be the batch, {batch}. Wrap what all samples share in eq.shared(...)"
                    )
                slots.append(position)
                per_batch.append(has_batch)
            position += 1
    return leaves, spec, slots, per_batch
