"""Ways in besides `fixed_point`: a solution found elsewhere, and the root of a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from equilibria.solve.adjoints import Adjoint
from equilibria.solve.api import (
    DEFAULT_ADJOINT,
    DEFAULT_SOLVER,
    check_options,
    fixed_point,
    refuse_adjoint,
)
from equilibria.solve.boundary import boundary
from equilibria.solve.closure import Function, close_over
from equilibria.solve.newton import NewtonKrylov
from equilibria.solve.path import Unrolled
from equilibria.solve.solution import Solution
from equilibria.solve.solvers import Picard, Solver
from equilibria.solve.tree import Tree

DEFAULT_ROOT_SOLVER = NewtonKrylov(rtol=1e-6, max_evals=1000)


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
    solver = DEFAULT_SOLVER if solver is None else solver
    adjoint = DEFAULT_ADJOINT if adjoint is None else adjoint
    check_options(f, solver, adjoint, None)
    if isinstance(adjoint.now, Unrolled) or adjoint.now.needs_inverse:
        refuse_adjoint("attach", adjoint.now)
    if solver.error is not None:
        raise ValueError(
            f"attach: error={solver.error:g} can't be judged from one evaluation: leave it out, or "
            "let fixed_point go on from there"
        )
    return fixed_point(
        _name_caller(f, "attach"),
        z_star,
        *operands,
        solver=replace(Picard(**solver.limits), max_evals=1),
        adjoint=adjoint,
        coupled=coupled,
        throw=throw,
        has_aux=has_aux,
    )


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
    function = _name_caller(g, "root_find")
    function.is_root = True
    solver = DEFAULT_ROOT_SOLVER if solver is None else solver
    return fixed_point(function, z0, *operands, solver=solver, adjoint=adjoint, **options)


def _name_caller(f: Callable[..., Tree], caller: str) -> Function:
    function = close_over(f)
    function.caller = caller
    return function
