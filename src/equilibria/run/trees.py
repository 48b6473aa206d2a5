"""Trees of tensors: moved to a device, copied, or in float32."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

_Tree = TypeVar("_Tree")


def to_device(tree: _Tree, device: torch.device | str) -> _Tree:
    """Return a tree with its tensors on a device."""
    return pytree.tree_map_only(Tensor, lambda x: x.to(device), tree)


def copy_tensors(tree: _Tree) -> _Tree:
    """Return a tree with its tensors detached and copied into contiguous memory.

    Tensors read from a checkpoint are contiguous; arithmetic on a tensor with another layout, such
    as a view of a larger one, may differ in the last bit.
    """
    plain = torch.contiguous_format
    return pytree.tree_map_only(Tensor, lambda x: x.detach().clone(memory_format=plain), tree)


def widen(tree: _Tree) -> _Tree:
    """Return a tree with its floating-point tensors in float32 at least."""
    halves = (torch.float16, torch.bfloat16)
    return pytree.tree_map_only(Tensor, lambda x: x.float() if x.dtype in halves else x, tree)
