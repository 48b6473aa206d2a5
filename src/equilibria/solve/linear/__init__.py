"""Linear solvers for u = A u + g, where A is known by its products: the adjoint's equation."""

from equilibria.solve.linear.base import LinearSolver
from equilibria.solve.linear.bicgstab import BiCGSTAB
from equilibria.solve.linear.direct import DirectSolve
from equilibria.solve.linear.fallback import Fallback
from equilibria.solve.linear.gmres import GMRES
from equilibria.solve.linear.neumann import Neumann, affine

__all__ = [
    "GMRES",
    "BiCGSTAB",
    "DirectSolve",
    "Fallback",
    "LinearSolver",
    "Neumann",
    "affine",
]
