"""Linear solvers for u = A u + g, where A is known by its products: the adjoint's equation."""

from equilibria.solve.linear.base import LinearSolver
from equilibria.solve.linear.bicgstab import BiCGSTAB
from equilibria.solve.linear.dense import Dense
from equilibria.solve.linear.gmres import GMRES
from equilibria.solve.linear.neumann import Neumann, affine
from equilibria.solve.linear.relay import Relay

__all__ = [
    "GMRES",
    "BiCGSTAB",
    "Dense",
    "LinearSolver",
    "Neumann",
    "Relay",
    "affine",
]
