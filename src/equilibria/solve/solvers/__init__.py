"""Forward solvers: each finds z = f(z) with one evaluation of f a step."""

from equilibria.solve.solvers.anderson import AlternatingAnderson, Anderson
from equilibria.solve.solvers.base import Solver
from equilibria.solve.solvers.broyden import Broyden
from equilibria.solve.solvers.picard import Picard

__all__ = ["AlternatingAnderson", "Anderson", "Broyden", "Picard", "Solver"]
