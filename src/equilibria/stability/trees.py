"""States and operands of the doctor's patients, as rows and as trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.solve import Shared, Status


def map_floats(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """`function` of every floating-point tensor in a tree, also inside `shared`."""

    def apply(x: Any) -> Any:
        if isinstance(x, Shared):
            return Shared(map_floats(function, x.value))
        return function(x) if isinstance(x, Tensor) and x.is_floating_point() else x

    return pytree.tree_map(apply, tree)


def operand_leaves(operands: tuple[Any, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Floating-point tensors with a batch axis, and those that all samples share."""
    batched: list[Tensor] = []
    shared: list[Tensor] = []
    for leaf in pytree.tree_leaves(operands):
        inside = pytree.tree_leaves(leaf.value) if isinstance(leaf, Shared) else [leaf]
        target = shared if isinstance(leaf, Shared) else batched
        target += [x for x in inside if isinstance(x, Tensor) and x.is_floating_point()]
    return batched, shared


def rows_of(z: Any, coupled: bool) -> Tensor:
    """All entries of each sample in one row, in float64: (samples, entries)."""
    leaves: Sequence[Tensor] = pytree.tree_leaves(z)
    samples = 1 if coupled else leaves[0].shape[0]
    return torch.cat([leaf.detach().double().reshape(samples, -1) for leaf in leaves], dim=1)


def relative(difference: Tensor, scale: Tensor) -> Tensor:
    """||difference|| / ||scale|| of each row."""
    tiny = torch.finfo(difference.dtype).tiny
    return difference.norm(dim=-1) / (scale.norm(dim=-1) + tiny)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Of each row; one where both vanish."""
    inner, sizes = (a * b).sum(-1), a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(sizes == 0, (a == b).all(-1).to(a.dtype), inner / sizes.clamp_min(1e-300))


def shares(status: Tensor) -> dict[str, float]:
    """The share of samples that ended with each status, by its name."""
    return {s.name: float((status == s).double().mean()) for s in Status}
