"""States and operands are trees: tensors in tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Tree = Any
Leaves = list[Tensor]


@dataclass(frozen=True)
class Shared:
    """An operand that all samples share. Made by `shared`."""

    value: Tree


def shared(value: Tree) -> Shared:
    """Marks an operand that has no batch axis; f receives `value` itself.

    Args:
        value: a tensor or a tree of tensors, of any shape.
    """
    return Shared(value)


def flatten(tree: Tree) -> tuple[list[Any], pytree.TreeSpec]:
    return pytree.tree_flatten(tree)


def unflatten(leaves: Sequence[Any], spec: pytree.TreeSpec) -> Tree:
    return pytree.tree_unflatten(list(leaves), spec)


def map_tensors(function: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """`function` applied to every tensor of the tree; other leaves stay."""
    return pytree.tree_map_only(Tensor, function, tree)


def flatten_state(z: Tree) -> tuple[Leaves, pytree.TreeSpec]:
    """Flattens a state and checks it.

    Raises:
        TypeError: a leaf is no tensor, is below float32 or complex, or dtypes or devices differ.
        ValueError: no leaf, a leaf without a batch axis, first axes that differ, an empty batch.
    """
    leaves, spec = flatten(z)
    if not leaves:
        raise ValueError("the state z0 has no tensor: expected a tensor or a tree of tensors")
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise TypeError(
                f"the state z0 holds a {type(leaf).__name__}: expected tensors in tuples, lists or "
                "dicts"
            )
        if leaf.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"the state z0 is {leaf.dtype}: expected float32 or float64. Keep the state wide "
                "and let f alone run in reduced precision, under torch.autocast"
            )
        if leaf.dim() == 0:
            raise ValueError(
                "the state z0 has a tensor without axes: the first axis of every tensor is the batch"
            )
    tensors = cast("Leaves", leaves)
    first = tensors[0]
    for leaf in tensors[1:]:
        if leaf.dtype != first.dtype or leaf.device != first.device:
            raise TypeError(
                f"the tensors of the state z0 differ: {first.dtype} on {first.device} and "
                f"{leaf.dtype} on {leaf.device}; expected one dtype and one device"
            )
        if leaf.shape[0] != first.shape[0]:
            raise ValueError(
                f"the tensors of the state z0 differ in their first axis (the batch): "
                f"{first.shape[0]} and {leaf.shape[0]}"
            )
    if first.shape[0] == 0:
        raise ValueError("the batch is empty: z0 has no sample along its first axis")
    if sum(leaf[:1].numel() for leaf in tensors) == 0:
        raise ValueError("the state z0 has no entries: a sample needs at least one")
    return tensors, spec
