"""What in a cell has no fixed point: found and pointed out when the layer is built."""

import sys
import warnings
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from equilibria.solve import private

__all__ = ["refuse_cast", "refuse_sharded", "warn_of_unsteady"]


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


def warn_of_unsteady(cell: nn.Module) -> None:
    """Warn once for each sub-module that makes each evaluation of a cell a different function.

    Args:
        cell: the module to look through. Modules in eval mode are taken as frozen on purpose.
    """
    for path, module in cell.named_modules():
        if advice := _advice(module):
            warnings.warn(f"in the cell, '{path}' {advice}", UserWarning, stacklevel=3)


def _advice(module: nn.Module) -> str:
    """Say what is wrong with a module and what to use instead; nothing if it is fit for a cell."""
    name = f"({type(module).__name__})"
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm | WeightNorm):
            return (
                f"{name} computes its weight anew at each evaluation, through a hook of "
                "torch.nn.utils: use weight_norm or spectral_norm of equilibria.nn"
            )
    if isinstance(module, _BatchNorm):
        if not module.training and module.track_running_stats:
            return ""
        return (
            f"{name} depends on the other samples of the batch and changes at each evaluation: use "
            "GroupNorm or LayerNorm"
        )
    if not module.training:
        return ""
    if isinstance(module, _DropoutNd) and module.p > 0:
        return (
            f"{name} draws a new mask at each evaluation, so there is no fixed point: use "
            f"equilibria.nn.VariationalDropout({module.p}{_shared_axes(module)})"
        )
    if isinstance(module, nn.RReLU):
        return f"{name} draws new slopes at each evaluation: use LeakyReLU"
    if isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0:
        return (
            f"{name} draws a new dropout mask at each evaluation: build it with dropout=0 and put "
            "equilibria.nn.VariationalDropout behind it"
        )
    return ""


def _shared_axes(module: _DropoutNd) -> str:
    """The argument that makes a variational dropout drop whole channels where `module` does."""
    kinds = ((nn.Dropout1d, "(2,)"), (nn.Dropout2d, "(2, 3)"), (nn.Dropout3d, "(2, 3, 4)"))
    return next((f", shared={axes}" for kind, axes in kinds if isinstance(module, kind)), "")
