"""Layers that torch's `fully_shard` has made unfit for a solve."""

import sys
from typing import Any

import torch
from torch import nn

from equilibria.solve import private

__all__ = ["refuse_cast", "refuse_sharded"]


def refuse_cast(layer: nn.Module) -> None:
    """Refuse a layer for which torch's `fully_shard` changes the precision of what it is given.

    The state of a solve is in float32 at least, and a copy of a solution does not hear of its
    backward solve.

    Raises:
        TypeError: the `mp_policy` of the layer, or of the module around it, casts parameters to
            less than float32, or casts outputs.
    """
    for policy in private.sharding_policies(layer):
        if policy.param_dtype in (torch.float16, torch.bfloat16):
            raise TypeError(
                f"the layer is sharded with mp_policy param_dtype={policy.param_dtype}, and a "
                "solve needs a float32 state, which such a cell does not take: leave param_dtype "
                "out, and call the model under torch.autocast, where the cell alone runs in less"
            )
        if policy.output_dtype is not None:
            raise TypeError(
                f"the layer is sharded with mp_policy output_dtype={policy.output_dtype}, for "
                "which fully_shard copies the solution that it returns: leave output_dtype out"
            )


def refuse_sharded(cell: nn.Module) -> None:
    """Refuse a cell whose parameters torch's `fully_shard` shards apart from the layer.

    Its hooks gather them at every evaluation and free them after it, while the solve and the
    backward evaluate as often as the data ask, on each process by its own: the processes would wait
    for each other forever, or backward would meet parameters without values.

    Raises:
        RuntimeError: a sub-module of the cell, or the cell, was given to `fully_shard`.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(fsdp, "FSDPModule", None)
    if kind is None:
        return
    for path, module in cell.named_modules():
        if isinstance(module, kind):
            place = f"'{path}' in the cell" if path else "the cell"
            raise RuntimeError(
                f"{place} is sharded by fully_shard, which gathers its parameters at every "
                "evaluation of the solve: call fully_shard on the DEQ layer, or on a module around "
                "it, and on nothing inside; then they are gathered once a solve"
            )
