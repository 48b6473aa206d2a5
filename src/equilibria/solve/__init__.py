"""Fixed points in PyTorch: solve, differentiate to any order, say honestly how it went.

Imports torch alone.
"""

from equilibria.solve import profiles
from equilibria.solve.adjoints import (
    Adjoint,
    Implicit,
    JacobianFree,
    NeumannPhantom,
    Phantom,
    Shine,
    Unrolled,
)
from equilibria.solve.advance import advance
from equilibria.solve.api import fixed_point
from equilibria.solve.equation import AdjointInfo
from equilibria.solve.linear import GMRES, BiCGSTAB, DirectSolve, Fallback, LinearSolver, Neumann
from equilibria.solve.solution import Solution
from equilibria.solve.solvers import AlternatingAnderson, Anderson, Broyden, Picard, Solver
from equilibria.solve.solvers.auto import Auto
from equilibria.solve.solvers.newton import NewtonKrylov
from equilibria.solve.status import Reason, SolveError, SolveWarning, Stats, Status
from equilibria.solve.tree import Shared, shared

__all__ = [
    "GMRES",
    "Adjoint",
    "AdjointInfo",
    "AlternatingAnderson",
    "Anderson",
    "Auto",
    "BiCGSTAB",
    "Broyden",
    "DirectSolve",
    "Fallback",
    "Implicit",
    "JacobianFree",
    "LinearSolver",
    "Neumann",
    "NeumannPhantom",
    "NewtonKrylov",
    "Phantom",
    "Picard",
    "Reason",
    "Shared",
    "Shine",
    "Solution",
    "SolveError",
    "SolveWarning",
    "Solver",
    "Stats",
    "Status",
    "Unrolled",
    "advance",
    "fixed_point",
    "profiles",
    "shared",
]
