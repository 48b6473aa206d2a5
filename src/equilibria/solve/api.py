"""The ways in: `fixed_point` and `root_find`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.adjoints import Adjoint, Implicit, JacobianFree
from equilibria.solve.auto import Auto
from equilibria.solve.boundary import AutocastRegion, boundary
from equilibria.solve.closure import Closure, UserFunction, close_over, warn_of_unsteady
from equilibria.solve.layout import Coupled, read_groups
from equilibria.solve.newton import NewtonKrylov
from equilibria.solve.problem import Problem
from equilibria.solve.solution import Record, Solution
from equilibria.solve.solvers import Solver
from equilibria.solve.starts import Search, Starts
from equilibria.solve.status import Stats
from equilibria.solve.tree import (
    Leaves,
    Operands,
    Tree,
    describe,
    flatten,
    flatten_state,
    followable,
    unflatten,
)

DEFAULT_SOLVER = Auto()
DEFAULT_ADJOINT = Implicit()
DEFAULT_ROOT_SOLVER = NewtonKrylov(rtol=1e-6, max_evals=1000)


@boundary
def fixed_point(
    f: Callable[..., Tree],
    z0: Tree,
    *operands: Tree,
    solver: Solver | None = None,
    adjoint: Adjoint | None = None,
    throw: bool = False,
    drop_finished: bool = False,
    coupled: bool | Tensor = False,
    trace: bool = False,
    states: Iterable[int] = (),
    warm: Solution | None = None,
    returns: str = "best",
    starts: int | Starts | None = None,
    has_aux: bool = False,
) -> Solution:
    """Solves z* = f(z*, *operands) and connects z* to everything that f depends on.

    Gradients are those of z*, by the adjoint chosen: with respect to operands, to parameters of a
    module and to other tensors that f closes over; to any order; under autocast and under
    torch.func. f treats the samples of a batch independently, unless `coupled` says otherwise.

    Args:
        f: z, *operands -> z. Called many times; it must return the same for the same input (no
            fresh dropout masks, no batch statistics), in the state's structure, shapes and dtype,
            and in a new tensor each time (no buffer used again, as in a replayed CUDA graph).
        z0: the start: a tensor `(batch, ...)` or a tree (tuple, list, dict) of such tensors, in
            float32 or float64. It gets a gradient only under `Unrolled`.
        operands: tensors `(batch, ...)` or trees of them; `eq.shared(x)` for one that has no batch
            axis.
        solver: default `Auto()`.
        adjoint: default `Implicit()`.
        throw: raise where a sample does not converge, forward or backward.
        drop_finished: f closes over nothing that has a batch axis, so finished samples may leave
            the batch; otherwise they stay, frozen.
        coupled: f mixes rows of the state. True: the whole state is one sample, with one residual
            and one status; its leaves have no batch axis and any shapes, operands too. An int64
            tensor `(rows,)`, the sample of each row, 0, 1, ...: the rows of a sample, whose number
            may differ from sample to sample, as nodes do from graph to graph. Residuals, counts,
            status and the adjoint are then those of each sample.
        trace: record the residual after every evaluation in `stats.trace`.
        states: numbers of evaluations after which to return the iterate, in `Solution.states`.
        warm: an earlier solution of a like problem: its value starts the solve in place of z0, its
            adjoint the backward solve.
        returns: which iterate a sample that did not converge returns, with the residual there:
            "best", the one with the smallest residual, as the tolerance measures it; or "last", the
            last one evaluated, which is further along where a signal travels through the state (a
            NONFINITE sample returns its best). `Phantom` takes its steps from there; it has
            no effect under `Unrolled`, which returns the step after the last evaluation.
        starts: a number of starts of each sample, or `Starts`, which says how they are drawn and
            which answer is kept; z0 is the first. All are solved in one batch, so f closes over
            nothing that has a batch axis. `Solution.starts` tells of each, and the answer that is
            kept alone has a gradient. It excludes `coupled`, `trace`, `states` and `warm`.
        has_aux: f returns a pair, (z, aux); aux may be any tree. `Solution.aux` is that at z*, with
            its gradient, through z* too. It takes one evaluation more, which `stats.evals` leaves
            out.

    Returns:
        A `Solution`. One that ended badly holds its best finite iterate, or with returns="last" its
        last, and says so in `status`.

    Raises:
        TypeError: a state that is no float32 or float64 tensor; f returning another structure or
            dtype.
        ValueError: an operand with another first axis, f returning another shape, impossible
            options.
        SolveError: under `throw`, naming samples, status and residual.
        RuntimeError: f closes over a tensor with a history that Python cannot see.

    Source: Bai et al. 2019, sec. 3 and Theorem 1.
    """
    states = _numbers(states)
    solver, adjoint = choose_methods(f, solver, adjoint, warm)
    check_returns(returns)
    adjoint = adjoint.now
    record = Record()
    if warm is not None:
        record = Record(None if warm.adjoint is None else warm.adjoint.value, warm.start_size)
    # One that follows a path differentiates by itself. What it solves on the way is a solution to
    # nobody, so the cheapest adjoint stands there.
    at_solution = JacobianFree() if adjoint.follows_path else adjoint
    equation, leaves, p = pose(
        f,
        z0,
        operands,
        solver,
        at_solution,
        coupled,
        record,
        throw=throw,
        drop_finished=drop_finished,
        trace=trace,
        states=states,
        returns=returns,
        has_aux=has_aux,
    )
    if warm is not None:
        leaves = _warm_start(warm, leaves, equation.state_spec)
    if starts is not None:
        equation = Search.of(equation, starts, adjoint, warm, leaves)
    return _solve(equation, adjoint, leaves, p)


@boundary
def root_find(
    g: Callable[..., Tree],
    z0: Tree,
    *operands: Tree,
    solver: Solver | None = None,
    adjoint: Adjoint | None = None,
    **options: Any,
) -> Solution:
    """Solves g(z*, *operands) = 0 and connects z* to everything that g depends on.

    It is the fixed point of f(z) = z - g(z), and all that a `Solution` says is said of that f: the
    residual is ||g(z)|| / ||z - g(z)||, and a sample has converged when

        ||g(z)|| <= atol + rtol ||z - g(z)||

    in the RMS norm. So `rtol` compares g with z, and `atol` is in the units of g. If g is much
    smaller than z wherever it is evaluated, or z* may be 0, multiply g by a number, or set `atol`
    (and rtol=0.0 for `atol` alone, as `scipy.optimize.root` has it).

    Args:
        g: z, *operands -> a tree like z. What `fixed_point` asks of f holds for g.
        z0: the start, as of `fixed_point`.
        operands: as of `fixed_point`.
        solver: default `NewtonKrylov(rtol=1e-6, max_evals=1000)`: its steps are the same whatever g
            is multiplied by, of either sign, and it needs no contraction. `Broyden` and `Anderson`
            take fewer evaluations where dg/dz is near the identity; `Picard` is z <- z - g(z), and
            converges where that contracts, as for the gradient of a well-scaled convex function.
        adjoint: default `Implicit()`. The Jacobian of f is I - dg/dz, so `JacobianFree` and
            `NeumannPhantom` are for g with dg/dz near the identity.
        options: `throw`, `warm`, `coupled`, ... as of `fixed_point`.

    Returns:
        A `Solution`. One that ended badly holds its best finite iterate and says so in `status`.

    Raises:
        TypeError, ValueError, SolveError, RuntimeError: as `fixed_point`.

    Example:
        >>> sol = eq.root_find(lambda z, a: z**3 + z - a, torch.zeros_like(a), a)
        >>> sol.value.sum().backward()
    """
    if not callable(g):
        raise TypeError(f"g: expected a function of (z, *operands), got {g!r}")
    function = label_function(g, "root_find")
    function.is_root = True
    solver = DEFAULT_ROOT_SOLVER if solver is None else solver
    return fixed_point(function, z0, *operands, solver=solver, adjoint=adjoint, **options)


def label_function(f: Callable[..., Tree], caller: str) -> UserFunction:
    """f as a function of its own, which knows by whose name messages are to call its caller."""
    function = close_over(f)
    function = copy.copy(function) if function is f else function
    function.caller = caller
    return function


def pose(
    f: Callable[..., Tree],
    z0: Tree,
    operands: Sequence[Tree],
    solver: Solver,
    adjoint: Adjoint,
    coupled: bool | Tensor,
    record: Record,
    *,
    drop_finished: bool = False,
    **how: Any,
) -> tuple[Problem, Leaves, Leaves]:
    """The problem that a caller's arguments, which are checked here, pose; its start; the tensors
    among the operands."""
    leaves, spec = flatten_state(z0, batched=coupled is not True)
    batch = None if coupled is True else leaves[0].shape[0]
    if coupled is True and solver.per_row and len({x.shape[:1] for x in leaves}) > 1:
        raise ValueError(
            "per_row needs leaves with one first axis, the rows; this state has several"
        )
    function = close_over(f)
    given, p = Operands.of(operands, batch, function.keywords)
    groups: Coupled = coupled is True
    if batch and not isinstance(coupled, bool):
        groups = read_groups(coupled, batch)
    if drop_finished and groups is not False:
        raise ValueError(
            "drop_finished and coupled exclude each other: rows of a coupled batch stay together"
        )
    problem = Problem(
        f=function,
        solver=solver.like(z0) if solver.by_leaf else solver,
        state_spec=spec,
        operands=given,
        autocast=AutocastRegion.current(leaves[0].device.type),
        coupled=groups,
        adjoint=adjoint,
        record=record,
        expected=function.closes_over,
        drop_finished=drop_finished,
        **how,
    )
    return problem, leaves, p


def _empty(equation: Problem, z: Leaves, p: Leaves) -> Solution:
    """The solution of no samples: one evaluation, which links it to what f depends on."""
    value, aux = equation.evaluate_with_aux(z, p)
    status = torch.zeros(0, dtype=torch.int8, device=z[0].device)
    evals, residual = status.to(torch.int64), status.to(z[0].dtype)
    return Solution(
        value=unflatten(value, equation.state_spec),
        status=status,
        stats=Stats(evals=evals, residual=residual, reason=status),
        states=tuple(unflatten(value, equation.state_spec) for _ in equation.states),
        aux=aux,
        starts=None if equation.record is None else equation.record.starts,
    )


def _solve(equation: Problem, adjoint: Adjoint, leaves: Leaves, p: Leaves) -> Solution:
    """Solves from the start `leaves`, and returns the solution as the caller's tree.

    Args:
        adjoint: finds the solution and connects it to `p`. It is not the equation's where it
            follows a path.
        p: the tensors among the operands.
    """
    function, record = equation.f, equation.record
    assert record is not None
    if isinstance(function, Closure) and function.modules:
        warn_of_unsteady("f", (("", each) for each in function.modules))
    if not leaves[0].numel():
        return _empty(equation, leaves, p)
    found = adjoint.find(equation, [followable(x) for x in leaves], p)
    aux = None
    if equation.has_aux:
        aux = equation.evaluate_with_aux(found.value, [*p, *equation.captured.values])[1]
    function.retire()
    tracked = private.differentiates_later()
    return Solution(
        value=unflatten(found.value, equation.state_spec),
        status=found.status,
        stats=Stats(
            evals=found.evals,
            residual=found.residual,
            reason=found.reason,
            _course=found.course,
            **record.extras,
        ),
        states=tuple(unflatten(state, equation.state_spec) for state in found.states),
        aux=aux,
        starts=record.starts,
        _record=record,
        _evaluate=evaluator(equation, p) if tracked else None,
    )


def evaluator(equation: Problem, p: Leaves) -> Callable[[Leaves], Leaves]:
    return lambda z: equation.evaluate(z, [*p, *equation.captured.values])


def _warm_start(warm: Solution, like: Leaves, spec: Any) -> Leaves:
    leaves, its_spec = flatten(warm.value)
    if its_spec != spec:
        raise TypeError(
            f"warm is the solution {describe(warm.value)}; this problem's state is "
            f"{describe(unflatten(like, spec))}"
        )
    shapes = [tuple(x.shape) for x in leaves]
    expected = [tuple(x.shape) for x in like]
    if shapes != expected:
        raise ValueError(
            f"warm is a solution of the shapes {shapes}; this problem's state has {expected}"
        )
    return [x.detach().to(y) for x, y in zip(leaves, like, strict=True)]


def choose_methods(f: Any, solver: Any, adjoint: Any, warm: Any = None) -> tuple[Solver, Adjoint]:
    """The solver and the adjoint, or the defaults in place of None.

    Raises:
        TypeError: one of the arguments is of another kind.
    """
    solver = DEFAULT_SOLVER if solver is None else solver
    adjoint = DEFAULT_ADJOINT if adjoint is None else adjoint
    if not callable(f):
        raise TypeError(f"f: expected a function of (z, *operands), got {f!r}")
    if not isinstance(solver, Solver):
        raise TypeError(f"solver: expected a solver such as eq.Anderson(), got {solver!r}")
    if not isinstance(adjoint, Adjoint):
        raise TypeError(f"adjoint: expected an adjoint such as eq.Implicit(), got {adjoint!r}")
    if warm is not None and not isinstance(warm, Solution):
        raise TypeError(f"warm: expected an earlier Solution, got {type(warm).__name__}")
    return solver, adjoint


def check_returns(given: Any) -> None:
    """Raise ValueError unless it names an iterate to return."""
    if given not in ("best", "last"):
        raise ValueError(f'returns: expected "best" or "last", got {given!r}')


def _numbers(states: Any) -> tuple[int, ...]:
    if not isinstance(states, Iterable):
        raise TypeError(f"states: expected numbers of evaluations, got {states!r}")
    numbers = tuple(cast("Iterable[Any]", states))
    for k in numbers:
        if isinstance(k, bool) or not isinstance(k, int) or k < 0:
            raise ValueError(f"states: expected numbers of evaluations >= 0, got {k!r}")
    return numbers
