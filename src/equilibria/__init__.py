"""Deep equilibrium models in PyTorch.

sol = eq.fixed_point(f, z0, x)        # z* = f(z*, x), differentiable to any order
layer = eq.DEQ(cell)                  # the same as a layer: cell(z, x) -> z
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from equilibria.solve import (
    GMRES,
    Anderson,
    BiCGSTAB,
    Broyden,
    Dense,
    Implicit,
    JacobianFree,
    Neumann,
    NeumannPhantom,
    Phantom,
    Picard,
    Solution,
    SolveError,
    SolveWarning,
    Stats,
    Status,
    Unrolled,
    fixed_point,
    shared,
)

if TYPE_CHECKING:
    from equilibria import data, models, nn, stability
    from equilibria.nn import DEQ

__version__ = "0.1.0"

# Loaded when first asked for, so that `import equilibria` costs no more than torch.
_ROOMS = ("data", "models", "nn", "stability")
_ELSEWHERE = {"DEQ": "equilibria.nn"}

__all__ = [
    "DEQ",
    "GMRES",
    "Anderson",
    "BiCGSTAB",
    "Broyden",
    "Dense",
    "Implicit",
    "JacobianFree",
    "Neumann",
    "NeumannPhantom",
    "Phantom",
    "Picard",
    "Solution",
    "SolveError",
    "SolveWarning",
    "Stats",
    "Status",
    "Unrolled",
    "data",
    "fixed_point",
    "models",
    "nn",
    "shared",
    "stability",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"equilibria.{name}")
    if name in _ELSEWHERE:
        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    raise AttributeError(f"module 'equilibria' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
