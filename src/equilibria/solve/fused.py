"""The operators of `equilibria-kernels`, which do in one operation what takes torch many.

They serve states on the CPU that autograd does not follow; the Python form of each stands where it
is called, and is the reference.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.rows import Rows, entries

LONG = 1 << 16  # entries of a sample that several threads are to share


@cache
def operators() -> Any | None:
    """The operators; None where they are missing."""
    try:
        importlib.import_module("equilibria_kernels")
    except (ImportError, OSError):  # not installed, or built for a later torch
        return None
    found: Any = torch.ops.equilibria
    return found if hasattr(found, "look") else None


def name_kernel() -> str:
    """Which form solves take on the CPU, and why not the other."""
    if operators() is not None:
        return "fused operators (equilibria-kernels)"
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if (major, minor) < (2, 10):
        return f"torch operations: equilibria-kernels needs torch 2.10, found {torch.__version__}"
    return "torch operations: equilibria-kernels is not installed, or was built for another torch"


def serves(z: Rows) -> bool:
    """Can the operators work on such rows?"""
    row = z[0]
    return (
        all(type(x) is Tensor for x in z)
        and row.dtype in (torch.float32, torch.float64)
        and row.numel() > 0
        and private.free_to_read(row)
        and not private.transform_active()
        and (row.shape[0] >= torch.get_num_threads() or entries(z) < LONG)
        and operators() is not None
    )


def show_config() -> None:
    """Prints what solves run on: the version of torch, its threads, and the form of an evaluation.

    On the CPU the form is "fused operators" if equilibria-kernels is installed, else "torch
    operations", with the reason.
    """
    print(f"torch    {torch.__version__}")
    print(f"threads  {torch.get_num_threads()}")
    print(f"kernel   {name_kernel()}")
