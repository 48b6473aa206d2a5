"""Two settings of all tolerances, by their names.

A profile is the keywords of `fixed_point` and of `DEQ`:

    eq.fixed_point(f, z0, x, **eq.profiles.science(rtol=1e-8))
    eq.DEQ(cell, **eq.profiles.learning())
"""

from __future__ import annotations

from typing import TypedDict

from equilibria.solve.adjoints import Adjoint, Implicit
from equilibria.solve.auto import Auto
from equilibria.solve.gmres import GMRES
from equilibria.solve.newton import krylov
from equilibria.solve.solvers import Solver


class Profile(TypedDict):
    """The keywords that a profile sets."""

    solver: Solver
    adjoint: Adjoint


def learning(rtol: float = 1e-3) -> Profile:
    """For training: as accurate as noisy gradients are worth.

    `Auto`, with Newton steps, to `rtol` in at most 60 evaluations, or 100 where rtol is below 1e-3,
    and the exact adjoint to the same tolerance or, for a sample whose forward solve fell short of
    it, to what that reached: the two terms of the gradient's error (see `Implicit`) are then of one
    size.

    Args:
        rtol: of both solves, from 1e-4 to 1e-1. Under bfloat16 autocast it is at least 3.9e-3.
    """
    _check("learning", rtol, 1e-4, 1e-1, "eq.profiles.science")
    most = 60 if rtol >= 1e-3 else 100
    linear = GMRES(rtol=rtol, max_evals=most)
    return {
        "solver": Auto(rtol=rtol, max_evals=most, newton=krylov()),
        "adjoint": Implicit(linear=linear, follow=1.0),
    }


def science(rtol: float = 1e-8) -> Profile:
    """For derivatives that are themselves used: forces, Hessians, sensitivities.

    `Auto`, with Newton steps, to `rtol` in at most 1000 evaluations, and the exact adjoint to the
    same tolerance, whatever the forward solve reached. Use a float64 state: in float32 the residual
    has a floor near 3e-7, and tighter solves end as STALLED.

    Args:
        rtol: of both solves, from 1e-14 to 1e-4.
    """
    _check("science", rtol, 1e-14, 1e-4, "eq.profiles.learning")
    linear = GMRES(rtol=rtol, restart=60, max_evals=1000)
    solver = Auto(rtol=rtol, max_evals=1000, newton=krylov())
    return {"solver": solver, "adjoint": Implicit(linear=linear)}


def _check(name: str, rtol: float, low: float, high: float, other: str) -> None:
    if not low <= rtol <= high:
        raise ValueError(
            f"profiles.{name}(rtol={rtol!r}): expected a number from {low:g} to {high:g}. See "
            f"{other} for others, or set solver and adjoint by hand"
        )
