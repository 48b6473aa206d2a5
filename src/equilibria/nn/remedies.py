"""What goes wrong where cell and state first meet, and the remedy."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from equilibria.solve.tree import flatten, unflatten

__all__ = ["raise_with_remedy"]

# How torch and Python word it. A text that is not matched costs the remedy alone: the error itself
# is raised in any case.
OF_DTYPES = re.compile(r"dtype|scalar type|input type|float16|half", re.IGNORECASE)
OF_SHAPES = re.compile(
    r"shape|size|channel|dimension|unpack|indices|data type 'str'|where the state is", re.IGNORECASE
)


def raise_with_remedy(error: Exception, cell: nn.Module | None, z0: Any, *, guessed: bool) -> None:
    """Raise what a solve has raised with its remedy, where one is known; else return.

    Args:
        error: of the solve.
        cell: the layer's, where it is a module.
        z0: the start that the solve was given.
        guessed: nobody has named a start: it is zeros like the first input.

    Raises:
        TypeError: the cell's weights are below float32, outside of autocast.
        ValueError: the start was guessed, and its shapes or its structure are not the cell's.
    """
    message = str(error)
    # An error of a kind of its own is the cell's affair; those that name `operand` or `init=` have
    # said what to do, in this layer or in one within it.
    if type(error) not in (IndexError, RuntimeError, TypeError, ValueError):
        return
    if message.startswith("operand ") or "init=" in message:
        return
    leaves = [leaf for leaf in flatten(z0)[0] if isinstance(leaf, Tensor)]
    if cell is not None and leaves and OF_DTYPES.search(message):
        device = leaves[0].device.type
        low = next((p.dtype for p in cell.parameters() if _is_low(p)), None)
        if low is not None and not torch.is_autocast_enabled(device):
            raise TypeError(
                f"the cell has weights in {low} and the state is {leaves[0].dtype}, which a solve "
                "needs. Keep the model in float32 and call it under torch.autocast"
                f"({device!r}, {low}): then the cell alone is evaluated in {low}"
            ) from error
    if guessed and OF_SHAPES.search(message):
        raise ValueError(
            f"the cell failed on its state: {message}. No start was given, "
            f"so the state starts as zeros like the first input, {_shapes(z0)}. If the cell's "
            "state has another shape or is a tree, give the layer "
            "init=lambda x: torch.zeros(len(x), width), or the call z0="
        ) from error


def _is_low(parameter: Tensor) -> bool:
    return parameter.dtype in (torch.float16, torch.bfloat16)


def _shapes(z0: Any) -> Any:
    leaves, spec = flatten(z0)
    return unflatten([tuple(leaf.shape) for leaf in leaves], spec)
