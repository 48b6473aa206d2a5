"""Solutions that autograd follows along a path: the steps after a solve, or the solve itself."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import checkpoint as _checkpoint

from equilibria.solve import private
from equilibria.solve.adjoints import Phantom, Unrolled
from equilibria.solve.equation import raise_if_failed
from equilibria.solve.implicit import Found, one_step, solve
from equilibria.solve.nonlinear import TRACE_UNDER_VMAP, Nonlinear
from equilibria.solve.rows import Layout, Rows, choose, norm, relative_by_leaf, subtract
from equilibria.solve.status import Status
from equilibria.solve.tree import Leaves


def phantom(equation: Nonlinear, z: Leaves, p: Leaves, adjoint: Phantom) -> Found:
    """Solves untracked, then takes the tracked steps of `Phantom`."""
    quiet = replace(equation, throw=False)
    if private.transform_active():
        found = solve(quiet, z, p)
    else:
        with torch.no_grad():
            found = solve(quiet, z, p)
    everything = [*p, *quiet.captured.values]
    start = [leaf.detach() for leaf in found.value]
    layout = Layout.of(start, quiet.coupled)
    measured: list[_Measured] = []

    value = start
    for _ in range(adjoint.steps):
        image = quiet.evaluate(value, everything)
        measured.append(_measured(layout, value, image))
        value = [
            (1 - adjoint.damping) * x + adjoint.damping * y
            for x, y in zip(value, image, strict=True)
        ]
    with torch.no_grad():
        measured.append(_measured(layout, value, quiet.evaluate(value, everything)))

    end, solver = measured[-1], quiet.solver
    finite = torch.isfinite(end.size + end.scale)
    reached = end.size <= solver.atol + solver.rtol * end.scale
    ended = torch.where(found.status == Status.CONVERGED, int(Status.MAX_EVALS), found.status)
    status = torch.where(reached, int(Status.CONVERGED), ended)
    status = torch.where(finite, status, int(Status.NONFINITE)).to(torch.int8)
    # A sample whose steps left the finite numbers keeps the solution that they began at.
    rows = choose(finite, layout.rows(value), layout.rows(start))
    run = Found(
        value=layout.leaves(rows),
        status=status,
        evals=found.evals + adjoint.steps + 1,
        residual=torch.where(finite, end.relative, found.residual),
        states=found.states,
    )
    record = quiet.record
    if record is not None and record.trace is not None and record.leaf_trace is not None:
        record.trace = torch.cat([record.trace, torch.stack([m.relative for m in measured])])
        record.leaf_trace = torch.cat([record.leaf_trace, torch.stack([m.each for m in measured])])
    raise_if_failed(equation.throw, "fixed_point", run)
    if torch.is_grad_enabled():
        return replace(run, states=[one_step(quiet, state, everything) for state in run.states])
    return run


@dataclass(frozen=True)
class _Measured:
    """||f(z) - z||, ||f(z)||, the relative residual, and the same for each leaf."""

    size: Tensor
    scale: Tensor
    relative: Tensor
    each: Tensor


def _measured(layout: Layout, z: Leaves, image: Leaves) -> _Measured:
    rows = layout.rows([x.detach() for x in z])
    image_rows = layout.rows([x.detach() for x in image])
    residual = subtract(image_rows, rows)
    size, scale = norm(residual), norm(image_rows)
    relative = size / (scale + torch.finfo(size.dtype).tiny)
    return _Measured(size, scale, relative, relative_by_leaf(residual, image_rows))


def unrolled(equation: Nonlinear, z: Leaves, p: Leaves, adjoint: Unrolled) -> Found:
    """Solves with autograd following every step."""
    transformed = private.transform_active()
    if equation.trace and any(private.is_mapped(x) for x in [*z, *p]):
        raise RuntimeError(TRACE_UNDER_VMAP)
    if adjoint.checkpoint and transformed:
        raise RuntimeError(
            "Unrolled(checkpoint=True) can't be used under torch.func: torch's checkpointing is "
            "not made for its transforms. Use Unrolled()"
        )
    layout = Layout.of(z, equation.coupled)
    module: Any = _checkpoint

    def once(*state: Tensor) -> tuple[Tensor, ...]:
        return tuple(equation.evaluate(list(state), p))

    def rows_of_f(rows: Rows) -> Rows:
        state = layout.leaves(rows)
        if adjoint.checkpoint:
            return layout.rows(list(module.checkpoint(once, *state, use_reentrant=False)))
        return layout.rows(list(once(*state)))

    tracked = torch.is_grad_enabled() or transformed
    run = equation.search(rows_of_f, layout.rows(z), None, tracked=tracked, last=True)
    if equation.record is not None:
        equation.record.trace, equation.record.leaf_trace = run.trace, run.leaf_trace
    return Found(
        value=layout.leaves(run.value),
        status=run.status,
        evals=run.evals,
        residual=run.residual.detach(),
        states=[layout.leaves(rows) for rows in run.states],
    )
