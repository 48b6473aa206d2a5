"""The implicit function: a fixed point as an autograd function of everything that f depends on.

Forward solves, on plain tensors. Backward evaluates f anew at the solution, solves
u = J^T u + g, and returns (df/dp)^T u. Where derivatives of that are wanted, u is itself a fixed
point, of u -> J^T u + g, and passes through this same function: so every order of derivative is
right by recursion. (Cutting z* from the graph and hooking the linear solve onto its gradient, as is
usual, gives right first derivatives and wrong second ones: the dependence of df on z* is lost.)

Source: Bai et al. 2019, Theorem 1; Bai 2022 (thesis), eq. 2.14 and 2.16.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.boundary import boundary
from equilibria.solve.capture import capture
from equilibria.solve.derivative import fill_missing, pushforward, refuse_batches, sparse_pullback
from equilibria.solve.equation import Axes, Equation, LinearSystem
from equilibria.solve.loop import Run
from equilibria.solve.problem import Problem
from equilibria.solve.tree import Leaves

Outputs = tuple[Tensor, ...]


class Ending(NamedTuple):
    """The tensors that `FixedPoint` returns between the value and the states; see `Run`."""

    status: Tensor
    reason: Tensor
    evals: Tensor
    residual: Tensor
    course: Tensor


OUTCOME = len(Ending._fields)


def solve_implicitly(
    equation: Equation, z: Leaves, first: Leaves, p: Leaves
) -> tuple[Leaves, Ending, list[Leaves]]:
    """The solution, connected to `p`; how the solve ended; the states asked for."""
    n = len(z)
    out = _apply(equation, (n, len(first)), *z, *first, *p)
    states = [list(out[i : i + n]) for i in range(n + OUTCOME, len(out), n)]
    return list(out[:n]), Ending(*out[n : n + OUTCOME]), states


class FixedPoint(torch.autograd.Function):
    """(equation, counts, *z0, *f(z0), *p) -> (*z, status, reason, evals, residual, course,
    *states)."""

    @staticmethod
    def forward(equation: Equation, counts: tuple[int, int], *tensors: Tensor) -> Outputs:
        z, first, p = _part(counts, tensors)
        layout, run = equation.solve(z, first, p)
        value = layout.leaves(run.value)
        states = [leaf for rows in run.states for leaf in layout.leaves(rows)]
        # The caller may change them in place, and f may have returned a tensor of its own.
        fresh = [x.clone() for x in (*value, *states)]
        n, residual = len(value), run.residual
        course = torch.full_like(residual, torch.nan) if run.course is None else run.course
        ending = Ending(run.status, run.reason, run.evals, residual, course)
        return (*fresh[:n], *ending, *fresh[n:])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
        equation, counts, *tensors = inputs
        n = counts[0]
        p: Leaves = _part(counts, tensors)[2]
        ctx.equation = equation
        ctx.counts = counts
        ctx.others = len(output) - n
        ctx.mark_non_differentiable(*output[n:])
        saved: list[Tensor] = [
            *output[n : n + OUTCOME - 1],  # all but the course
            *output[:n],
            *p,
        ]
        ctx.save_for_backward(*saved)
        ctx.save_for_forward(*saved)
        ctx.set_materialize_grads(False)

    @staticmethod
    @boundary
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        equation: Equation = ctx.equation
        n, m = ctx.counts
        needed: list[bool] = list(ctx.needs_input_grad[2 + n + m :])
        nothing: list[Tensor | None] = [None] * (2 + n + m)
        if all(g is None for g in grads[:n]) or not any(needed):
            return (*nothing, *[None] * len(needed))
        advice = "use torch.func.jacrev or torch.func.vmap, or leave the option out"
        refuse_batches("a fixed point", grads[:n], advice)
        status, reason, evals, residual, *saved = [private.alive(x) for x in ctx.saved_tensors]
        z, p = saved[:n], saved[n:]
        equation.report_unsolved(status, reason, residual)
        g = fill_missing(grads[:n], z)
        if private.differentiates_later():
            found = _differentiable(equation, z, p, g, needed, residual)
        else:
            jacobian = equation.linearize(z, p, needed)
            equation.require_same(z, jacobian.value, residual)
            with jacobian.per_solve:
                u = equation.adjoint.propagate(LinearSystem(equation, z, p, graph=jacobian), g)
                if jacobian.constant:
                    equation.report_cut(z, p, evals)
                found = jacobian.parameters(u)
        for i in range(equation.operand_count(p)):
            if needed[i] and found[i] is None:
                found[i] = torch.zeros_like(p[i])
        return (*nothing, *found)

    @staticmethod
    @boundary
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        equation: Equation = ctx.equation
        n, m = ctx.counts
        # The saved tensors carry the tangents of the level that is being differentiated.
        status, reason, _, residual, *saved = [private.primal(x) for x in ctx.saved_tensors]
        z, p = saved[:n], saved[n:]
        given = tangents[2 + n + m :]
        moved = [i for i, t in enumerate(given) if t is not None]
        out: list[Tensor | None]
        if not moved:
            out = [torch.zeros_like(x) for x in z]
        else:
            equation.report_unsolved(status, reason, residual)
            equation.require_substitutable()
            with private.forward_mode():
                change = pushforward(
                    lambda *given: tuple(equation.evaluate(z, _replace(p, moved, given))),
                    [p[i] for i in moved],
                    [t for i in moved if (t := given[i]) is not None],
                    like=z,
                )
                out = list(equation.adjoint.propagate(LinearSystem(equation, z, p, False), change))
        return (*out, *[None] * ctx.others)

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any, in_dims: tuple[Any, ...], equation: Equation, counts: Any, *tensors: Tensor
    ) -> tuple[Outputs, tuple[int, ...]]:
        z, first, p = _part(counts, tensors)
        axes = Axes(*_part(counts, in_dims[2:]))
        folded, z_all, first_all, p_all = equation.fold_axis(info.batch_size, z, first, p, axes)
        out = _apply(folded, (len(z_all), len(first_all)), *z_all, *first_all, *p_all)
        n, whole = len(z), equation.coupled is True
        result = list(out)
        for i, each in enumerate(cast("tuple[Any, ...]", out)):
            if n <= i < n + OUTCOME or not whole:
                result[i] = each.unflatten(0, (info.batch_size, -1))
        return tuple(result), (0,) * len(out)


def _apply(equation: Equation, counts: tuple[int, int], *tensors: Tensor) -> Outputs:
    if not private.differentiates():
        return FixedPoint.forward(equation, counts, *tensors)
    function: Any = FixedPoint
    return function.apply(equation, counts, *tensors)


def _part(counts: tuple[int, int], items: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
    n, m = counts
    return list(items[:n]), list(items[n : n + m]), list(items[n + m :])


def _replace(p: Leaves, which: Sequence[int], given: Sequence[Tensor]) -> Leaves:
    """The parameters with those at positions `which` replaced."""
    everything = list(p)
    for i, x in zip(which, given, strict=True):
        everything[i] = x
    return everything


def _differentiable(
    equation: Equation, z: Leaves, p: Leaves, g: Leaves, needed: Sequence[bool], residual: Tensor
) -> list[Tensor | None]:
    equation.require_substitutable()
    u = equation.adjoint.propagate(LinearSystem(equation, z, p), g)
    wanted = [i for i, need in enumerate(needed) if need]

    def of_parameters(*given: Tensor) -> tuple[Tensor, ...]:
        value = equation.evaluate_known(z, _replace(p, wanted, given), [])
        equation.require_same(z, value, residual)
        return tuple(value)

    found = iter(sparse_pullback(of_parameters, [p[i] for i in wanted], u))
    return [next(found) if need else None for need in needed]


def solve_and_attach(equation: Problem, z: Leaves, p: Leaves) -> Run:
    """Solves, and connects the solution and the states to what f depends on."""
    found = capture_and_solve(equation, z, p)
    if not private.differentiates_later():
        return found
    everything = [*p, *equation.captured.values]
    return replace(
        found, states=tuple(one_step(equation, state, everything) for state in found.states)
    )


def capture_and_solve(equation: Problem, z: Leaves, p: Leaves) -> Run:
    """Solves, after a first evaluation that shows what f closes over."""
    first: Leaves = []
    if private.differentiates():
        # Tensors of their own, so that an operand that f closes over as well is found to be both.
        if private.transform_active():
            own = [x.view_as(x) for x in p]
        else:
            own = [x.detach().requires_grad_(x.requires_grad) for x in p]
        out, equation.captured = capture(
            lambda: equation.evaluate(z, own), [*z, *own], equation.expected
        )
        first = [leaf.detach() for leaf in out]
        del out  # its graph has served, and would be held for as long as the solve takes
        p = [*p, *equation.captured.values]
    value, outcome, states = solve_implicitly(equation, z, first, p)
    return Run(value, states=tuple(states), **outcome._asdict())


def one_step(equation: Problem, z: Leaves, p: Leaves) -> Leaves:
    """z with the gradient of f at z, where that is finite."""
    pairs = zip(z, equation.evaluate(z, p), strict=True)
    return [x + torch.where(torch.isfinite(y), y - y.detach(), 0.0) for x, y in pairs]
