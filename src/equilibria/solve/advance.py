"""One evaluation of f: at a solution found elsewhere, or as a step towards one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from equilibria.solve import private
from equilibria.solve.adjoints import Adjoint
from equilibria.solve.api import choose_methods, evaluator, fixed_point, label_function, pose
from equilibria.solve.boundary import boundary, without_autocast
from equilibria.solve.derivative import Linearization, fill_missing, refuse_batches
from equilibria.solve.equation import LinearSystem
from equilibria.solve.layout import Layout
from equilibria.solve.path import Unrolled
from equilibria.solve.problem import Problem
from equilibria.solve.rows import LARGEST, length
from equilibria.solve.solution import Record, Solution
from equilibria.solve.solvers import Picard, Solver
from equilibria.solve.status import Stats, Status, raise_if_failed
from equilibria.solve.tree import Leaves, Tree, followable, unflatten


@boundary
def attach(
    f: Callable[..., Tree],
    z_star: Tree,
    *operands: Tree,
    solver: Solver | None = None,
    adjoint: Adjoint | None = None,
    coupled: bool | Tensor = False,
    throw: bool = False,
    has_aux: bool = False,
) -> Solution:
    """Makes a solution that was found elsewhere differentiable: z* = f(z*, *operands).

    For a fixed point by SciPy, bisection, a C library, or a loop of your own: `fixed_point` without
    the search. f is evaluated once, which measures the residual; the gradients are those of
    `fixed_point`, at z_star, to any order and under torch.func. How exact they are depends on how
    close z_star is: see `Implicit`.

    Args:
        f: as of `fixed_point`.
        z_star: the solution: a tensor `(batch, ...)` or a tree of such tensors, in float32 or
            float64. It gets no gradient.
        operands: as of `fixed_point`.
        solver: whose rtol, atol and per_row decide the status; default `Auto()`. It has no limit
            on the error, of which one evaluation tells nothing.
        adjoint: default `Implicit()`. `Phantom` takes its steps from z_star, and returns where they
            end.
        coupled, has_aux: as of `fixed_point`.
        throw: raise where z_star is not within tolerance, and where a backward solve fails.

    Returns:
        A `Solution` whose `value` is z_star. `stats.residual` and `status` are measured there:
        CONVERGED, MAX_EVALS (not within tolerance) or NONFINITE; `stats.evals` is 1.

    Raises:
        TypeError, ValueError: as `fixed_point`; a solver with `error`; or an adjoint that needs the
            iterations of a solve (`Unrolled`, `Shine`).
        SolveError: under `throw`.

    Example:
        >>> found = scipy.optimize.root(lambda z: z - np.cos(z * a.item()), 1.0).x
        >>> z = eq.attach(lambda z, a: torch.cos(z * a), torch.from_numpy(found), a).value
        >>> torch.autograd.grad(z.sum(), a)
    """
    solver, adjoint = choose_methods(f, solver, adjoint)
    if isinstance(adjoint.now, Unrolled) or adjoint.now.needs_inverse:
        _refuse_adjoint("attach", adjoint.now)
    _refuse_error("attach", solver)
    return fixed_point(
        label_function(f, "attach"),
        z_star,
        *operands,
        solver=replace(Picard(**solver.limits), max_evals=1),
        adjoint=adjoint,
        coupled=coupled,
        throw=throw,
        has_aux=has_aux,
    )


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
    solver, adjoint = choose_methods(f, solver, adjoint)
    _refuse_error("advance", solver)
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
        ctx.set_materialize_grads(False)
        ctx.equation, ctx.edges, *image = inputs
        ctx.save_for_backward(*image)

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
        refuse_batches("advance", grads, "leave the option out")
        image: Leaves = list(ctx.saved_tensors)
        g = fill_missing(grads, image)
        graph = Linearization(image, ctx.edges, [])
        u = equation.adjoint.propagate(LinearSystem(equation, [], [], graph=graph), g)
        return (None, None, *u)


def advances(adjoint: Adjoint | None) -> bool:
    """Does an adjoint find a gradient from one evaluation, whatever becomes of it in training?"""
    levels = () if adjoint is None else adjoint.levels
    return bool(levels) and all(not (each.follows_path or each.needs_inverse) for each in levels)


def _single(adjoint: Adjoint) -> Adjoint:
    """The adjoint in use, if one evaluation is enough for it."""
    now = adjoint.now
    if now.follows_path or now.needs_inverse:
        _refuse_adjoint("advance", now)
    return now


def _refuse_adjoint(caller: str, adjoint: Adjoint) -> NoReturn:
    """Raise TypeError for an adjoint that one evaluation is not enough for."""
    what = "differentiates a path" if adjoint.follows_path else "needs what a solver has learned"
    raise TypeError(
        f"{caller} cannot use {adjoint!r}, which {what}: there is one evaluation and no solve. Use "
        "eq.Implicit(), eq.JacobianFree() or eq.NeumannPhantom(steps=2, damping=1.0)"
    )


def _refuse_error(caller: str, solver: Solver) -> None:
    """Raise ValueError for a limit on the error where one evaluation is all that is known."""
    if solver.error is not None:
        raise ValueError(
            f"{caller}: error={solver.error:g} can't be judged from one evaluation: leave it out, "
            "or let fixed_point find the solution"
        )


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
