"""Models whose values arrive after their parameters were sharded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, distributed

from equilibria.models import Model

__all__ = ["fill", "share_of", "without_data"]


def without_data(empty: Callable[[], Model]) -> Model:
    """Return a model with its parameters and buffers on the meta device, where they have no data.

    A constructor that reads the values of tensors, or that keeps one which is neither parameter nor
    buffer, runs on the CPU instead.
    """
    try:
        with torch.device("meta"):
            model = empty()
    except (RuntimeError, NotImplementedError) as error:
        reason = " ".join(str(error).split())[:200]
    else:
        plain = [
            f"{path}.{name}" if path else name
            for path, module in model.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, Tensor) and value.is_meta
        ]
        if not plain:
            return model
        reason = f"{plain[0]} is neither a parameter nor a buffer"
    warnings.warn(
        f"each process builds the model whole for a moment, since that needs data: {reason}",
        stacklevel=2,
    )
    return empty().to("meta")


@torch.no_grad()
def fill(model: Model, whole: Model | None, device: torch.device) -> None:
    """Give a sharded model without data the values of the first process's whole model."""
    model.to_empty(device=device)
    values = {} if whole is None else dict(_tensors(whole))
    for name, target in _tensors(model):
        value = torch.empty(target.shape, dtype=target.dtype, device=device)
        if name in values:
            value.copy_(values[name])
        distributed.broadcast(value, 0)
        target.copy_(share_of(value, target) if hasattr(target, "device_mesh") else value)


def _tensors(model: Model) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers by name, each of them once."""
    yield from model.named_parameters()
    yield from model.named_buffers()


def share_of(whole: Tensor, like: Any) -> Any:
    """Return this process's shard of a tensor that every process has in full."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = like.device_mesh
    everywhere = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(mesh, like.placements)
