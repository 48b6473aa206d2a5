"""One evaluation of f that serves as next iterate, as value and for the gradient."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from equilibria.solve import private
from equilibria.solve.adjoints import Adjoint
from equilibria.solve.api import (
    DEFAULT_ADJOINT,
    DEFAULT_SOLVER,
    check_options,
    evaluator,
    pose,
    refuse_adjoint,
    refuse_error,
)
from equilibria.solve.boundary import boundary, without_autocast
from equilibria.solve.derivative import Linearization, fill_missing
from equilibria.solve.equation import Place
from equilibria.solve.layout import Layout
from equilibria.solve.problem import Problem
from equilibria.solve.rows import LARGEST, length
from equilibria.solve.solution import Record, Solution
from equilibria.solve.solvers import Solver
from equilibria.solve.status import Stats, Status, raise_if_failed
from equilibria.solve.tree import Leaves, Tree, followable, unflatten


@boundary
def advance(
    f: Callable[..., Tree],
    z: Tree,
    *operands: Tree,
    solver: Solver | None = None,
    adjoint: Adjoint | None = None,
    coupled: bool | Tensor = False,
    throw: bool = False,
    has_aux: bool = False,
) -> Solution:
    """Evaluates y = f(z, *operands) once, as a step towards z* that can be learned from.

    For a state z that is near z*, as the one where the same samples ended a training step before:
    y is the next iterate, what the loss is taken of, and what the gradient goes through. Backward
    finds u from g = dL/dy as the adjoint says, with J = df/dz at z,

        u = g + J^T g + ... + (J^T)^(k-1) g     `NeumannPhantom(steps=k, damping=1)`
        u = g                                   `JacobianFree()`
        u = (I - J)^-T g                        `Implicit()`

    and dL/dp = u^T df/dp, all by products with the graph of that one evaluation. Fixed points are
    so found and used at the price of a plain layer and k - 1 products more. The gradient is that of
    z* at z, where `fixed_point` with `max_evals=1` would give it too; but its value is z, the best
    iterate that it has evaluated, and a chain of such solves would never move.

    Args:
        f: z, *operands -> z, as of `fixed_point`, without `torch.utils.checkpoint`: what that runs
            again in backward would see the weights of then.
        z: where f is evaluated; it gets no gradient.
        operands: as of `fixed_point`.
        solver: whose rtol, atol and per_row decide the status; default `Auto()`.
        adjoint: `NeumannPhantom`, `JacobianFree`, `Implicit`, or `AdaptiveAdjoint` at one of them;
            default `Implicit()`.
        coupled: as of `fixed_point`.
        throw: raise where z is not within tolerance, and where a backward solve fails.
        has_aux: f returns a pair, (y, aux). `Solution.aux` is that of this evaluation, and its
            gradient takes z for a constant.

    Returns:
        A `Solution`: `value` is y; `stats.residual` and `status` are those of z, which has been
        evaluated: CONVERGED, MAX_EVALS or NONFINITE; `stats.overall` is one residual for all
        samples; `stats.evals` is 1.

    Raises:
        TypeError, ValueError: as `fixed_point`; or an adjoint that is none of a solution
            (`Phantom`, `Unrolled`) or that needs what a solver has learned (`Shine`).
        SolveError: under `throw`.
        RuntimeError: in a transform of torch.func; in backward with create_graph=True, for z is
            taken for a constant and a second derivative would be wrong.

    Source: Bai 2022 (thesis), eq. 8.9 (which means theta of step t + 1) and 8.10, whose T is k - 1.
    """
    solver = DEFAULT_SOLVER if solver is None else solver
    adjoint = DEFAULT_ADJOINT if adjoint is None else adjoint
    check_options(f, solver, adjoint, None)
    refuse_error("advance", solver)
    if private.transform_active():
        raise RuntimeError(
            "advance takes no part in transforms of torch.func: its gradient is that of a solution "
            "that z stands for. Use fixed_point"
        )
    record = Record()
    how = {"throw": throw, "has_aux": has_aux}
    equation, leaves, p = pose(f, z, operands, solver, _single(adjoint), coupled, record, **how)
    if not leaves[0].numel():
        raise ValueError("the batch is empty: z has no sample along its first axis")
    start = [followable(x.detach()) for x in leaves]
    tracked = torch.is_grad_enabled()
    image, aux, value = _evaluate(equation, start, p, tracked)
    status, stats = _measure_status(equation, start, [x.detach() for x in image])
    if throw:
        raise_if_failed("advance", status, torch.zeros_like(status), stats.residual)
    return Solution(
        value=unflatten(value, equation.state_spec),
        status=status,
        stats=stats,
        aux=aux,
        _record=record,
        _evaluate=evaluator(equation, p) if tracked else None,
    )


def _evaluate(
    equation: Problem, z: Leaves, p: Leaves, tracked: bool
) -> tuple[Leaves, Tree, Leaves]:
    """f(z); what it returns beside; and f(z) with its gradient, where one is `tracked`."""
    if not tracked:
        image, aux = equation.evaluate_first(z, p)
        return image, aux, image
    begin: Any = _Start
    correct: Any = _Corrected
    # A leaf of its own would keep z for as long as the graph lives: the edge of this one does not,
    # and z is free once its place in a cache is taken.
    leaf = z[0].new_empty(0).requires_grad_()
    at: Leaves = list(begin.apply(leaf, *(x.detach() for x in z)))
    with private.for_many_backwards():
        image, aux = equation.evaluate_first(at, p)
    value = list(correct.apply(equation, [get_gradient_edge(x) for x in at], *image))
    return image, aux, value


class _Start(torch.autograd.Function):
    """z, as a node of the graph that hands no gradient on: the state is a constant."""

    @staticmethod
    def forward(leaf: Tensor, *z: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        ctx.count = len(inputs)  # that of the leaf among them
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[None, ...]:
        return (None,) * ctx.count


class _Corrected(torch.autograd.Function):
    """y = f(z), whose gradient becomes u on its way to what f depends on.

    Backward takes products with the graph of y, which goes on to run in the same backward.
    """

    @staticmethod
    def forward(equation: Problem, edges: list[GradientEdge], *image: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.view_as(x) for x in image)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.equation, ctx.edges, *image = inputs
        ctx.save_for_backward(*image)
        ctx.set_materialize_grads(False)

    @staticmethod
    @boundary
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        equation: Problem = ctx.equation
        if all(g is None for g in grads):
            return (None, None, *grads)
        if torch.is_grad_enabled():
            raise RuntimeError(
                "advance has no second derivative: it takes the state z for a constant, so "
                "create_graph=True would give a wrong one. Solve instead, with an exact adjoint"
            )
        if any(g is not None and private.is_batched_gradient(g) for g in grads):
            raise RuntimeError(
                "advance has no gradients in batches by is_grads_batched=True or "
                "torch.autograd.functional.jacobian(vectorize=True): leave the option out"
            )
        image: Leaves = list(ctx.saved_tensors)
        g = fill_missing(grads, image)
        graph = Linearization(image, ctx.edges, [])
        u = equation.adjoint.propagate(Place(equation, [], [], graph=graph), g)
        return (None, None, *u)


def advances(adjoint: Adjoint | None) -> bool:
    """Does an adjoint find a gradient from one evaluation, whatever becomes of it in training?"""
    levels = () if adjoint is None else adjoint.levels
    return bool(levels) and all(not (each.follows_path or each.needs_inverse) for each in levels)


def _single(adjoint: Adjoint) -> Adjoint:
    """The adjoint in use, if one evaluation is enough for it."""
    now = adjoint.now
    if now.follows_path or now.needs_inverse:
        refuse_adjoint("advance", now)
    return now


@torch.no_grad()
def _measure_status(equation: Problem, z: Leaves, image: Leaves) -> tuple[Tensor, Stats]:
    """Status, evaluations and residuals of z, by the solver's tolerances."""
    layout = Layout.of(z, equation.coupled)
    with without_autocast(z[0].device.type):
        found = equation.measure(z, image, layout)
        if not private.every(torch.clamp(found.scale, 1 / LARGEST, LARGEST) == found.scale):
            layout = layout.in_units_of(z, image)
            found = equation.measure(z, image, layout)
        reached = equation.criterion(layout).has_converged(found, None, [])
        finite = torch.isfinite(found.size + found.scale)
        whole = torch.stack([found.size, found.scale]).double()
        if layout.unit is not None:
            whole = whole * layout.unit.squeeze(1)
        overall = torch.div(*length([whole])).to(found.size.dtype)
        status = torch.where(reached, int(Status.CONVERGED), int(Status.MAX_EVALS))
        status = torch.where(finite, status, int(Status.NONFINITE)).to(torch.int8)
    stats = Stats(
        evals=torch.ones_like(status, dtype=torch.int64),
        residual=torch.where(finite, found.relative, math.inf),
        reason=torch.zeros_like(status),
        overall=overall,
    )
    return status, stats
