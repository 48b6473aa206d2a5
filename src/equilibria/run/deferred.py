"""Models whose values arrive after their parameters were sharded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, distributed
from torch.utils import _pytree as pytree

from equilibria.run.models import Model

__all__ = ["broadcast", "fill", "share_of", "without_data"]


def without_data(empty: Callable[[], Model]) -> Model:
    """Return a model with its parameters and buffers on the meta device, where they have no data.

    A constructor that reads the values of tensors, or stores a tensor that is neither a parameter
    nor a buffer (in an attribute, or in a list, tuple or dictionary), runs on the CPU instead.
    """
    try:
        with torch.device("meta"):
            model = empty()
    except Exception as error:  # numpy() raises a TypeError; what is no fault of meta returns below
        reason = " ".join(str(error).split())[:200]
    else:
        plain = [
            f"{path}.{name}" if path else name
            for path, module in model.named_modules()
            for name, value in vars(module).items()
            if name not in ("_parameters", "_buffers", "_modules")
            and any(isinstance(x, Tensor) and x.is_meta for x in pytree.tree_leaves(value))
        ]
        if not plain:
            return model
        reason = f"{plain[0]} is neither a parameter nor a buffer"
    warnings.warn(
        f"each process temporarily builds the full model, whose constructor needs data: {reason}",
        stacklevel=2,
    )
    return empty().to("meta")


@torch.no_grad()
def fill(model: Model, whole: Model | None, device: torch.device) -> None:
    """Fill a sharded model without data with the values of the first process's full model."""
    model.to_empty(device=device)
    # By every name: a buffer that two modules share is one in `whole`, and by now two in `model`.
    values = {} if whole is None else dict(_tensors(whole, remove_duplicate=False))
    for name, target in _tensors(model):
        value = torch.empty(target.shape, dtype=target.dtype, device=device)
        if whole is not None:
            value.copy_(values[name])
        broadcast(value)
        target.copy_(share_of(value, target) if hasattr(target, "device_mesh") else value)


def broadcast(tensor: Tensor) -> None:
    """Give a tensor the values that it has on the first process.

    As bytes: no backend takes all types, such as int16 and complex numbers.
    """
    sent = tensor.contiguous()
    distributed.broadcast(sent.view(-1).view(torch.uint8), 0)
    if sent is not tensor:
        tensor.copy_(sent)


def _tensors(model: Model, *, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers by name: each of them once, or by all its names."""
    yield from model.named_parameters(remove_duplicate=remove_duplicate)
    yield from model.named_buffers(remove_duplicate=remove_duplicate)


def share_of(whole: Tensor, like: Any) -> Any:
    """Return this process's shard of a tensor that every process has in full."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = like.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(mesh, like.placements)
