"""How the gradient of a fixed point is found: exactly, inexactly, or along the path."""

from equilibria.solve.adjoints.base import Adjoint
from equilibria.solve.adjoints.implicit import Implicit
from equilibria.solve.adjoints.neumann import JacobianFree, NeumannPhantom
from equilibria.solve.adjoints.phantom import Phantom
from equilibria.solve.adjoints.shine import Shine
from equilibria.solve.adjoints.unrolled import Unrolled

__all__ = [
    "Adjoint",
    "Implicit",
    "JacobianFree",
    "NeumannPhantom",
    "Phantom",
    "Shine",
    "Unrolled",
]
