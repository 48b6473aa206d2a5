"""What goes wrong where cell and state first meet, and the remedy."""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from equilibria.nn.frozen import module_of
from equilibria.solve import flatten, unflatten
from equilibria.words import plural

__all__ = ["raise_with_remedy"]

# How torch and Python word it. A text that is not matched costs the remedy alone: the error itself
# is raised in any case.
OF_DTYPES = re.compile(r"dtype|scalar type|input type|float16|half", re.IGNORECASE)
OF_SHAPES = re.compile(
    r"shape|size|channel|dimension|unpack|indices|data type 'str'|where the state is", re.IGNORECASE
)


def raise_with_remedy(
    error: Exception, cell: Callable[..., Any], z0: Any, inputs: tuple[Any, ...], *, guessed: bool
) -> None:
    """Raise what a solve has raised with its remedy, where one is known; else return.

    Args:
        error: of the solve.
        cell: the layer's.
        z0: the start that the solve was given.
        inputs: of the cell.
        guessed: nobody has named a start: it is zeros like the first input.

    Raises:
        TypeError: the cell takes other arguments; its weights are below float32, outside of
            autocast.
        ValueError: the start was guessed, and its shapes or its structure are not the cell's.
    """
    message = str(error)
    # An error of a kind of its own is the cell's affair; those that name `operand` or `init=` have
    # said what to do, in this layer or in one within it.
    if type(error) not in (IndexError, RuntimeError, TypeError, ValueError):
        return
    if message.startswith("operand ") or "init=" in message:
        return
    if _is_raised_by_user(error):
        return
    if isinstance(error, TypeError) and (wrong := _wrong_call(cell, z0, inputs)):
        raise TypeError(wrong) from error
    leaves = [leaf for leaf in flatten(z0)[0] if isinstance(leaf, Tensor)]
    owner = module_of(cell)
    if owner is not None and leaves and OF_DTYPES.search(message):
        device = leaves[0].device.type
        low = next((p.dtype for p in owner.parameters() if _is_low(p)), None)
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


def _is_raised_by_user(error: Exception) -> bool:
    """Was it raised by a `raise` statement outside of this package and of torch?"""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if (
        trace is None
        or trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES
    ):
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == dis.opmap["RAISE_VARARGS"]


_LIBRARIES = ("torch", "equilibria")


def _wrong_call(cell: Callable[..., Any], z0: Any, inputs: tuple[Any, ...]) -> str:
    """What is wrong with how a cell is called, if something is."""
    f = cell.forward if isinstance(cell, nn.Module) else cell
    try:
        signature = inspect.signature(f)
    except (TypeError, ValueError):  # of a function that is not Python's
        return ""
    try:
        signature.bind(z0, *inputs)
    except TypeError:
        count = plural(len(inputs), "input")
        names = ", ".join(f"x{i}" for i in range(1, len(inputs) + 1))
        name = getattr(f, "__qualname__", type(cell).__name__)
        return (
            f"the cell is called as cell(z, *inputs), here with {count}; {name}{signature} does "
            f"not accept that. Wrap it in a module with forward(self, z{', ' if names else ''}"
            f"{names})"
        )
    return ""


def _is_low(parameter: Tensor) -> bool:
    return parameter.dtype in (torch.float16, torch.bfloat16)


def _shapes(z0: Any) -> Any:
    leaves, spec = flatten(z0)
    return unflatten([tuple(leaf.shape) for leaf in leaves], spec)
