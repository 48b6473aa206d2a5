"""What makes each evaluation of f another function, so that it has no fixed point."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.dropout import _DropoutNd  # pyright: ignore[reportPrivateUsage]
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from equilibria.solve.status import warn


def warn_of_unsteady(where: str, modules: Iterable[tuple[str, nn.Module]]) -> None:
    """Warn once for each module that makes each evaluation of f another function.

    Args:
        where: of what the paths are, for the message.
        modules: with their paths. Those in eval mode are taken as frozen on purpose.
    """
    for path, module in modules:
        if advice := _advice(module):
            name = f"'{path}' " if path else "a module "
            warn(f"in {where}, {name}{advice}", UserWarning)


def _advice(module: nn.Module) -> str:
    """Say what is wrong with a module and what to use instead; nothing if it is fit for a cell."""
    name = f"({type(module).__name__})"
    hooks: Any = module._forward_pre_hooks  # pyright: ignore
    for hook in hooks.values():
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
