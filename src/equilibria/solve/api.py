"""`fixed_point`: the one way in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint as _checkpoint

from equilibria.solve import private
from equilibria.solve.adjoints import Adjoint, Implicit, Phantom, Unrolled
from equilibria.solve.autocast import AutocastRegion
from equilibria.solve.capture import capture
from equilibria.solve.equation import Record
from equilibria.solve.function import solve_implicitly
from equilibria.solve.lent import keep_lent
from equilibria.solve.nonlinear import TRACE_UNDER_VMAP, Nonlinear
from equilibria.solve.rows import Layout, norm, subtract
from equilibria.solve.solution import Solution
from equilibria.solve.solvers import Anderson, Solver
from equilibria.solve.status import Stats, Status
from equilibria.solve.tree import Leaves, Operands, Tree, flatten, flatten_state, unflatten


def fixed_point(
    f: Callable[..., Tree],
    z0: Tree,
    *operands: Tree,
    solver: Solver | None = None,
    adjoint: Adjoint | None = None,
    throw: bool = False,
    per_sample: bool = False,
    coupled: bool = False,
    trace: bool = False,
    states: Sequence[int] = (),
    warm: Solution | None = None,
) -> Solution:
    """Solves z* = f(z*, *operands) and connects z* to everything that f depends on.

    Gradients are those of z*, by the adjoint chosen: with respect to operands, to parameters of a
    module and to other tensors that f closes over; to any order; under autocast and under
    torch.func. f treats the samples of a batch independently, unless `coupled` says otherwise.

    Args:
        f: z, *operands -> z. Called many times; it must return the same for the same input (no
            fresh dropout masks, no batch statistics), in the state's structure, shapes and dtype.
        z0: the start: a tensor `(batch, ...)` or a tree (tuple, list, dict) of such tensors, in
            float32 or float64. It gets a gradient only under `Unrolled`.
        operands: tensors `(batch, ...)` or trees of them; `eq.shared(x)` for one that has no batch
            axis.
        solver: default `Anderson()`.
        adjoint: default `Implicit()`.
        throw: raise where a sample does not converge, forward or backward.
        per_sample: f closes over nothing that has a batch axis, so finished samples may leave the
            batch; otherwise they stay, frozen.
        coupled: f mixes samples; the batch is solved as one sample: one residual, one status.
        trace: record the residual after every evaluation in `stats.trace`.
        states: numbers of evaluations after which to return the iterate, in `Solution.states`.
        warm: an earlier solution of a like problem: its value starts the solve in place of z0, its
            adjoint the backward solve.

    Returns:
        A `Solution`. One that ended badly holds its best finite iterate and says so in `status`.

    Raises:
        TypeError: a state that is no float32 or float64 tensor; f returning another structure or
            dtype.
        ValueError: an empty batch, an operand with another first axis, f returning another shape,
            impossible options.
        SolveError: under `throw`, naming samples, status and residual.
        RuntimeError: f closes over a tensor with a history that Python cannot see.

    Source: Bai et al. 2019, sec. 3 and Theorem 1.
    """
    solver = Anderson() if solver is None else solver
    adjoint = Implicit() if adjoint is None else adjoint
    _check_options(f, solver, adjoint, per_sample, coupled, states, warm)
    leaves, spec = flatten_state(z0)
    batch = leaves[0].shape[0]
    given = Operands.of(operands, batch)
    record = Record()
    if warm is not None:
        leaves = _warm_start(warm, leaves)
        if warm.adjoint is not None:
            record = Record(warm.adjoint.value)
    equation = Nonlinear(
        f=keep_lent(f),
        solver=solver,
        state_spec=spec,
        operands=given,
        autocast=AutocastRegion.current(leaves[0].device.type),
        coupled=coupled,
        per_sample=per_sample and not coupled,
        throw=throw,
        trace=trace,
        states=tuple(states),
        adjoint=adjoint,
        record=record,
    )
    p = given.tensors()
    if isinstance(adjoint, Unrolled):
        found = _unrolled(equation, leaves, p, adjoint)
    else:
        start = [leaf.detach() for leaf in leaves]
        if isinstance(adjoint, Phantom):
            found = _phantom(equation, start, p, adjoint)
        else:
            found = _implicit(equation, start, p)
    return Solution(
        value=unflatten(found.value, spec),
        status=found.status,
        stats=Stats(
            evals=found.evals,
            residual=found.residual,
            trace=record.trace,
            leaf_trace=record.leaf_trace,
        ),
        states=tuple(unflatten(state, spec) for state in found.states),
        record=record,
    )


@dataclass(frozen=True)
class _Found:
    value: Leaves
    status: Tensor
    evals: Tensor
    residual: Tensor
    states: list[Leaves]


def _implicit(equation: Nonlinear, z: Leaves, p: Leaves) -> _Found:
    z, first, everything = _captured(equation, z, p)
    value, (status, evals, residual), states = solve_implicitly(equation, z, first, everything)
    if torch.is_grad_enabled() or private.transform_active():
        states = [_one_step(equation, state, everything) for state in states]
    return _Found(value, status, evals, residual, states)


def _captured(equation: Nonlinear, z: Leaves, p: Leaves) -> tuple[Leaves, Leaves, Leaves]:
    """The first evaluation, which shows what f closes over: z, f(z) and all parameters."""
    transformed = private.transform_active()
    if not (torch.is_grad_enabled() or transformed or private.dual_level_active()):
        return z, [], p
    # Leaves of their own, so that the walk through the graph ends at the operands.
    own = p if transformed else [x.detach().requires_grad_(x.requires_grad) for x in p]
    out, captured = capture(lambda: equation.evaluate(z, own), [*z, *own])
    equation.captured = captured
    return z, [leaf.detach() for leaf in out], [*p, *captured.values]


def _one_step(equation: Nonlinear, z: Leaves, p: Leaves) -> Leaves:
    """z with the gradient of f at z."""
    step = equation.evaluate(z, p)
    return [x + (y - y.detach()) for x, y in zip(z, step, strict=True)]


def _phantom(equation: Nonlinear, z: Leaves, p: Leaves, adjoint: Phantom) -> _Found:
    if private.transform_active():
        found = _implicit(equation, z, p)
    else:
        with torch.no_grad():
            found = _implicit(equation, z, p)
    everything = [*p, *equation.captured.values]
    value = [leaf.detach() for leaf in found.value]
    for _ in range(adjoint.steps):
        step = equation.evaluate(value, everything)
        value = [
            (1 - adjoint.damping) * x + adjoint.damping * y
            for x, y in zip(value, step, strict=True)
        ]
    with torch.no_grad():
        end = [x.detach() for x in value]
        image = [x.detach() for x in equation.evaluate(end, everything)]
    layout = Layout.of(end, equation.coupled)
    rows, image = layout.rows(end), layout.rows(image)
    size, scale = norm(subtract(image, rows)), norm(image)
    solver = equation.solver
    reached = size <= solver.atol + solver.rtol * scale
    ended = torch.where(found.status == Status.CONVERGED, int(Status.MAX_EVALS), found.status)
    status = torch.where(reached, int(Status.CONVERGED), ended)
    finite = torch.isfinite(size + scale)
    status = torch.where(finite, status, int(Status.NONFINITE)).to(torch.int8)
    relative = size / (scale + torch.finfo(size.dtype).tiny)
    evals = found.evals + adjoint.steps + 1
    states = found.states
    if torch.is_grad_enabled():
        states = [_one_step(equation, state, everything) for state in states]
    return _Found(value, status, evals, relative, states)


def _unrolled(equation: Nonlinear, z: Leaves, p: Leaves, adjoint: Unrolled) -> _Found:
    if equation.trace and any(private.is_mapped(x) for x in [*z, *p]):
        raise RuntimeError(TRACE_UNDER_VMAP)
    layout = Layout.of(z, equation.coupled)

    def once(*state: Tensor) -> tuple[Tensor, ...]:
        return tuple(equation.evaluate(list(state), p))

    def again(*state: Tensor) -> tuple[Tensor, ...]:
        module: Any = _checkpoint
        return module.checkpoint(once, *state, use_reentrant=False)

    def rows_of_f(rows: list[Tensor]) -> list[Tensor]:
        state = layout.leaves(rows)
        return layout.rows(list(again(*state) if adjoint.checkpoint else once(*state)))

    tracked = torch.is_grad_enabled() or private.transform_active()
    run = equation.search(rows_of_f, layout.rows(z), None, tracked=tracked)
    if equation.record is not None:
        equation.record.trace, equation.record.leaf_trace = run.trace, run.leaf_trace
    return _Found(
        layout.leaves(run.value),
        run.status,
        run.evals,
        run.residual.detach(),
        [layout.leaves(rows) for rows in run.states],
    )


def _warm_start(warm: Solution, like: Leaves) -> Leaves:
    leaves = flatten(warm.value)[0]
    shapes = [tuple(x.shape) for x in leaves]
    expected = [tuple(x.shape) for x in like]
    if shapes != expected:
        raise ValueError(
            f"warm is a solution of the shapes {shapes}; this problem's state has {expected}"
        )
    return [x.detach().to(y) for x, y in zip(leaves, like, strict=True)]


def _check_options(
    f: Any,
    solver: Any,
    adjoint: Any,
    per_sample: Any,
    coupled: Any,
    states: Sequence[Any],
    warm: Any,
) -> None:
    if not callable(f):
        raise TypeError(f"f: expected a function of (z, *operands), got {f!r}")
    if not isinstance(solver, Solver):
        raise TypeError(f"solver: expected a solver such as eq.Anderson(), got {solver!r}")
    if not isinstance(adjoint, Adjoint):
        raise TypeError(f"adjoint: expected an adjoint such as eq.Implicit(), got {adjoint!r}")
    if per_sample and coupled:
        raise ValueError("per_sample and coupled exclude each other: a coupled batch is one sample")
    for k in states:
        if isinstance(k, bool) or not isinstance(k, int) or k < 0:
            raise ValueError(f"states: expected numbers of evaluations >= 0, got {k!r}")
    if warm is not None and not isinstance(warm, Solution):
        raise TypeError(f"warm: expected an earlier Solution, got {type(warm).__name__}")
