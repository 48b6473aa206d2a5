"""The private names of torch that this package needs, with a test each in test_private.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_functorch: Any = torch._C._functorch  # pyright: ignore
_forward_ad: Any = forward_ad


def transform_active() -> bool:
    """Inside torch.func.grad, vjp, jvp, vmap, ... ?"""
    return _functorch.peek_interpreter_stack() is not None


def is_wrapped(tensor: Tensor) -> bool:
    """Does the tensor belong to a level of a torch.func transform?"""
    return bool(_functorch.is_functorch_wrapped_tensor(tensor))


def is_mapped(tensor: Tensor) -> bool:
    """Does the tensor have an axis hidden by torch.vmap, at any level?"""
    while is_wrapped(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False


def dual_level_active() -> bool:
    """Inside forward-mode differentiation?"""
    return _forward_ad._current_level >= 0


def primal(tensor: Tensor) -> Tensor:
    """The tensor without the tangent of the innermost forward-mode level."""
    if not dual_level_active():
        return tensor
    return _forward_ad.unpack_dual(tensor).primal


def has_tangent(tensor: Tensor) -> bool:
    return dual_level_active() and _forward_ad.unpack_dual(tensor).tangent is not None


def sequence_number(node: Any) -> int:
    """Counts up with every node that autograd makes; leaves have the largest number there is."""
    return node._sequence_nr()
