"""States and operands are trees: tensors in tuples, lists and dicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
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


REQUIRES_GRAD = attrgetter("requires_grad")
"""Of a tensor; `any(map(REQUIRES_GRAD, tensors))` takes no frame of Python at each evaluation."""

_LEAF: pytree.TreeSpec = pytree.tree_flatten(None)[1]


def flatten(tree: Tree) -> tuple[list[Any], pytree.TreeSpec]:
    """The leaves of a tree, in order, and its structure."""
    # Asked at every evaluation, most often of a single tensor; torch's own leaves a cycle behind.
    return ([tree], _LEAF) if isinstance(tree, Tensor) else pytree.tree_flatten(tree)


def unflatten(leaves: Sequence[Any], spec: pytree.TreeSpec) -> Tree:
    """The tree of this structure with these leaves."""
    # Asked at every evaluation, most often of a single tensor.
    return leaves[0] if spec.is_leaf() else pytree.tree_unflatten(list(leaves), spec)


def followable(x: Tensor) -> Tensor:
    """x, as a tensor that autograd may follow where it was made in inference mode."""
    return x.clone() if x.is_inference() else x


def describe(tree: Tree) -> str:
    """The structure of a tree in words: `tuple(Tensor, dict(a=Tensor))`."""
    if isinstance(tree, dict):
        inner = cast("dict[Any, Any]", tree)
        return f"dict({', '.join(f'{key}={describe(value)}' for key, value in inner.items())})"
    if isinstance(tree, tuple | list):
        several = cast("Sequence[Any]", tree)
        return f"{type(several).__name__}({', '.join(describe(value) for value in several)})"
    return type(tree).__name__


def flatten_state(z: Tree, batched: bool = True) -> tuple[Leaves, pytree.TreeSpec]:
    """Flattens a state and checks it.

    Args:
        batched: the first axis of every leaf is the batch, which may be empty.

    Raises:
        TypeError: a leaf is no tensor, is below float32 or complex, or dtypes or devices differ.
        ValueError: no leaf, a leaf without entries; if batched, a leaf without a batch axis, or
            first axes that differ.
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
        if leaf.is_complex():
            raise TypeError(
                f"the state z0 is {leaf.dtype}: expected float32 or float64. Solve for its real "
                "and imaginary parts: let the state be torch.view_as_real(z), and f take "
                "torch.view_as_complex of it"
            )
        if leaf.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"the state z0 is {leaf.dtype}: expected float32 or float64. Keep the state wide "
                "and let f alone run in reduced precision, under torch.autocast"
            )
        if batched and leaf.dim() == 0:
            raise ValueError(
                "the state z0 has a tensor without axes: the first axis of every tensor is the "
                "batch; a single number is z0.reshape(1). A state without a batch is solved with "
                "coupled=True"
            )
    tensors = cast("Leaves", leaves)
    first = tensors[0]
    for leaf in tensors[1:]:
        if leaf.dtype != first.dtype or leaf.device != first.device:
            raise TypeError(
                f"the tensors of the state z0 differ: {first.dtype} on {first.device} and "
                f"{leaf.dtype} on {leaf.device}; expected one dtype and one device"
            )
        if batched and leaf.shape[0] != first.shape[0]:
            raise ValueError(
                f"the tensors of the state z0 differ in their first axis (the batch): "
                f"{first.shape[0]} and {leaf.shape[0]}. A state without a batch is solved with "
                "coupled=True"
            )
    empty = batched and first.shape[0] == 0
    for leaf in tensors:
        if leaf.numel() == 0 and not (empty and leaf.shape[1:].numel()):
            raise ValueError(
                f"the state z0 has a tensor without entries, of the shape {tuple(leaf.shape)}: "
                "leave it out of the state"
            )
    return tensors, spec


@dataclass(frozen=True)
class Operands:
    """The operands of f, with their tensors set apart.

    Attributes:
        leaves: all leaves, None in place of the tensors.
        spec: their structure; None where every operand is a tensor by itself.
        slots: positions of the tensors.
        per_batch: which tensors have the batch as their first axis.
    """

    leaves: list[Any]
    spec: pytree.TreeSpec | None
    slots: list[int]
    per_batch: list[bool]

    @classmethod
    def of(
        cls, operands: Sequence[Tree], batch: int | None, keywords: Sequence[str] = ()
    ) -> tuple[Operands, Leaves]:
        """Flattens operands, unwraps what is shared and checks the batch axis of the rest.

        Args:
            batch: None: there is no batch.
            keywords: names of the last operands.

        Returns:
            What is known of them without their tensors, and the tensors.

        Raises:
            ValueError: an operand that is not shared has another first axis than the batch.
            TypeError: something shared inside a tree.
        """
        plain = [x.value if isinstance(x, Shared) else x for x in operands]
        slots: list[int] = []
        per_batch: list[bool] = []
        leaves: list[Any] = []
        tensors: Leaves = []
        names = [*range(len(plain) - len(keywords)), *map(repr, keywords)]
        for name, operand, tree in zip(names, operands, plain, strict=True):
            for leaf in flatten(tree)[0]:
                if isinstance(leaf, Shared):
                    raise TypeError(
                        f"operand {name} has eq.shared(...) inside a tree: wrap the whole "
                        "operand, or pass its shared part as an operand of its own"
                    )
                if not isinstance(leaf, Tensor):
                    leaves.append(leaf)
                    continue
                has_batch = batch is not None and not isinstance(operand, Shared)
                if has_batch and (leaf.dim() == 0 or leaf.shape[0] != batch):
                    raise ValueError(
                        f"operand {name} has the shape {tuple(leaf.shape)}: its first axis "
                        f"must be the batch, {batch} as in the start z0. Wrap what all samples "
                        "share in eq.shared(...)"
                    )
                slots.append(len(leaves))
                per_batch.append(has_batch)
                leaves.append(None)
                tensors.append(leaf)
        flat = all(map(isinstance, plain, repeat(Tensor)))
        return cls(leaves, None if flat else flatten(tuple(plain))[1], slots, per_batch), tensors

    @classmethod
    def of_tensors(cls, count: int) -> Operands:
        """Tensors by themselves, which all samples share."""
        return cls([None] * count, None, list(range(count)), [False] * count)

    def tree(self, tensors: Sequence[Tensor]) -> Tree:
        """The operands with these tensors in their places."""
        if self.spec is None:
            return tuple(tensors)
        leaves = list(self.leaves)
        for slot, tensor in zip(self.slots, tensors, strict=True):
            leaves[slot] = tensor
        return unflatten(leaves, self.spec)
