"""Fixed points in PyTorch: solve, differentiate to any order, say honestly how it went.

Imports torch alone.
"""

from equilibria.solve import profiles
from equilibria.solve.adjoints import (
    LOOSEST,
    Adjoint,
    Fallback,
    Implicit,
    JacobianFree,
    NeumannPhantom,
    Shine,
)
from equilibria.solve.advance import advance, advances, attach
from equilibria.solve.anderson import ROOM, Anderson, AndersonStepper, minimizer
from equilibria.solve.api import check_returns, fixed_point, root_find
from equilibria.solve.auto import Auto
from equilibria.solve.boundary import boundary, without_autocast
from equilibria.solve.broyden import Broyden
from equilibria.solve.closure import Closure, UserFunction, warn_of_unsteady
from equilibria.solve.convergence import GROWTH, SHARE
from equilibria.solve.estimate import WARNED_ERROR
from equilibria.solve.fused import name_kernel, show_config
from equilibria.solve.gmres import GMRES
from equilibria.solve.layout import Layout
from equilibria.solve.linear import BiCGSTAB, DirectSolve, LinearSolver, Neumann
from equilibria.solve.newton import NewtonKrylov
from equilibria.solve.options import (
    Tolerance,
    damping_field,
    nonnegative_field,
    number_field,
    whole_field,
)
from equilibria.solve.path import Phantom, Unrolled
from equilibria.solve.rows import Rows, add_scaled, choose, length
from equilibria.solve.solution import AdjointInfo, Solution, StartOutcomes
from equilibria.solve.solvers import Jacobian, Picard, Point, Solver, Stepper
from equilibria.solve.starts import Starts
from equilibria.solve.status import Reason, SolveError, SolveWarning, Stats, Status
from equilibria.solve.tree import Shared, Tree, flatten, followable, shared, unflatten

__all__ = [
    "GMRES",
    "GROWTH",
    "LOOSEST",
    "ROOM",
    "SHARE",
    "WARNED_ERROR",
    "Adjoint",
    "AdjointInfo",
    "Anderson",
    "AndersonStepper",
    "Auto",
    "BiCGSTAB",
    "Broyden",
    "Closure",
    "DirectSolve",
    "Fallback",
    "Implicit",
    "Jacobian",
    "JacobianFree",
    "Layout",
    "LinearSolver",
    "Neumann",
    "NeumannPhantom",
    "NewtonKrylov",
    "Phantom",
    "Picard",
    "Point",
    "Reason",
    "Rows",
    "Shared",
    "Shine",
    "Solution",
    "SolveError",
    "SolveWarning",
    "Solver",
    "StartOutcomes",
    "Starts",
    "Stats",
    "Status",
    "Stepper",
    "Tolerance",
    "Tree",
    "Unrolled",
    "UserFunction",
    "add_scaled",
    "advance",
    "advances",
    "attach",
    "boundary",
    "check_returns",
    "choose",
    "damping_field",
    "fixed_point",
    "flatten",
    "followable",
    "length",
    "minimizer",
    "name_kernel",
    "nonnegative_field",
    "number_field",
    "profiles",
    "root_find",
    "shared",
    "show_config",
    "unflatten",
    "warn_of_unsteady",
    "whole_field",
    "without_autocast",
]
