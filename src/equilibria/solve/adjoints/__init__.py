"""How the gradient of a fixed point is found: exactly, inexactly, or along the path."""

from equilibria.solve.adjoints.implicit import Implicit
from equilibria.solve.adjoints.neumann import JacobianFree, NeumannPhantom
from equilibria.solve.adjoints.path import Phantom, Unrolled
from equilibria.solve.equation import Adjoint

__all__ = ["Adjoint", "Implicit", "JacobianFree", "NeumannPhantom", "Phantom", "Unrolled"]
