"""A solver chosen for prediction, in place of the one that a network was trained with."""

from __future__ import annotations

from dataclasses import replace

from equilibria import solve
from equilibria.run import plugins
from equilibria.solve import Solver

__all__ = ["SOLVERS", "changed"]

SOLVERS = ("Auto", "Anderson", "Broyden", "Picard", "NewtonKrylov")
"""Solvers by name."""


def changed(
    solver: Solver,
    name: str | None = None,
    rtol: float | None = None,
    max_evals: int | None = None,
) -> Solver:
    """Return a solver under other limits, or another one under the same limits.

    Args:
        solver: to begin with.
        name: one of `SOLVERS`, or `module:Class` of a module that is imported; None for the same
            method.
        rtol: relative tolerance; None for no change.
        max_evals: evaluations, at most; None for no change.

    Raises:
        ValueError: there is no such class, or its module is not imported.
    """
    if name is not None:
        own = plugins.is_path(name)
        method = plugins.find(name, (Solver,)) if own else getattr(solve, name)
        solver = solver if method is type(solver) else method(**solver.limits)
    given = {"rtol": rtol, "max_evals": max_evals}
    return replace(solver, **{key: value for key, value in given.items() if value is not None})
