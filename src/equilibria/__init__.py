"""Deep equilibrium models in PyTorch.

    sol = eq.fixed_point(f, z0, x)        # z* = f(z*, x), differentiable to any order
    layer = eq.DEQ(cell)                  # the same as a layer: cell(z, x) -> z

Names are loaded when they are first asked for: the command line answers before torch is there.
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # importing typing would take a third of the time that this module takes
if TYPE_CHECKING:
    from typing import Any

    from equilibria import learned, nn, stability, theory
    from equilibria.learned import NeuralSolver, distill
    from equilibria.nn import DEQ
    from equilibria.run import data, models
    from equilibria.solve import (
        GMRES,
        Adjoint,
        Anderson,
        Auto,
        BiCGSTAB,
        Broyden,
        DirectSolve,
        Fallback,
        Implicit,
        JacobianFree,
        LinearSolver,
        Neumann,
        NeumannPhantom,
        NewtonKrylov,
        Phantom,
        Picard,
        Reason,
        Shine,
        Solution,
        SolveError,
        Solver,
        SolveWarning,
        Starts,
        Stats,
        Status,
        Unrolled,
        attach,
        fixed_point,
        profiles,
        root_find,
        shared,
        show_config,
    )
    from equilibria.stability import AdaptiveAdjoint

__version__ = "0.1.0"

__all__ = [
    "DEQ",
    "GMRES",
    "AdaptiveAdjoint",
    "Adjoint",
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
    "NeuralSolver",
    "NewtonKrylov",
    "Phantom",
    "Picard",
    "Reason",
    "Shine",
    "Solution",
    "SolveError",
    "SolveWarning",
    "Solver",
    "Starts",
    "Stats",
    "Status",
    "Unrolled",
    "attach",
    "data",
    "distill",
    "fixed_point",
    "learned",
    "models",
    "nn",
    "profiles",
    "root_find",
    "shared",
    "show_config",
    "stability",
    "theory",
]

_ROOMS = {
    **{name: f"equilibria.{name}" for name in ("learned", "nn", "stability", "theory")},
    **{name: f"equilibria.run.{name}" for name in ("data", "models")},
}
_FROM = {
    "AdaptiveAdjoint": "equilibria.stability",
    "DEQ": "equilibria.nn",
    "NeuralSolver": "equilibria.learned",
    "distill": "equilibria.learned",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(_ROOMS[name])
    if name not in __all__:
        raise AttributeError(f"module 'equilibria' has no attribute {name!r}")
    room = _FROM.get(name, "equilibria.solve")
    value = globals()[name] = getattr(importlib.import_module(room), name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
