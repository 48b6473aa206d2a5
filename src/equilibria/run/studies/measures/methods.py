"""The solvers that studies compare, by name, and their names in tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from equilibria.solve import Anderson, Broyden, NewtonKrylov, Picard, Solver

WORDS: Mapping[str, str] = {
    "plain": "plain iteration",
    "anderson": "alternating Anderson (period 3)",
    "broyden": "Broyden",
    "newton": "Newton-Krylov",
}


def methods(rtol: float, max_evals: int) -> Mapping[str, Solver]:
    """Return the solvers of `WORDS` at one tolerance and one limit of evaluations."""
    kinds = (Picard(), Anderson(period=3), Broyden(), NewtonKrylov())
    return {
        name: replace(kind, rtol=rtol, max_evals=max_evals)
        for name, kind in zip(WORDS, kinds, strict=True)
    }
