"""A weight that is applied to the state: what it is, how much it gives, and how it is set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm

from equilibria.nn.init.fill import Maps
from equilibria.nn.modes import in_eval_mode

__all__ = ["RecurrentWeight", "joint_gain", "set_weights"]


@dataclass(frozen=True, kw_only=True)
class RecurrentWeight:
    """A weight that f applies to its state.

    Attributes:
        path: of the weight in the model, such as `deq.cell.linear.weight`.
        layer: the module that has it.
        name: of the weight in that module.
        maps: the linear maps that it is made of.
    """

    path: str
    layer: nn.Module
    name: str = "weight"
    maps: Maps = field(default_factory=Maps)

    @torch.no_grad()
    def value(self) -> Tensor:
        """Return the weight as f uses it in eval mode: normalised, where it is; detached."""
        if not parametrize.is_parametrized(self.layer, self.name):
            return getattr(self.layer, self.name).detach()
        # In training, dropout would draw a mask, and torch's spectral norm move its vectors.
        with in_eval_mode(_steps(self.layer, self.name)):
            return getattr(self.layer, self.name).detach()

    @torch.no_grad()
    def set(self, value: Tensor) -> None:
        """Put `value` in the place of the weight, through its parametrisation where it has one.

        Raises:
            ValueError: it is computed, and not by a parametrisation that can be inverted, or by one
                whose state goes with the weight.
        """
        if not parametrize.is_parametrized(self.layer, self.name):
            stored = self.layer._parameters.get(self.name, self.layer._buffers.get(self.name))
            if stored is None:
                raise ValueError(
                    f"{self.path} is computed from other tensors, as the hooks of torch.nn.utils "
                    "do, and what is written into it would be lost: use weight_norm or "
                    "spectral_norm of equilibria.nn"
                )
            stored.copy_(value)
            return
        if any(isinstance(step, _SpectralNorm) for step in _steps(self.layer, self.name).modules()):
            raise ValueError(
                f"{self.path} is under torch's spectral_norm, which divides it by an estimate that "
                "is of the weight before until it has been used for a while: use spectral_norm of "
                "equilibria.nn"
            )
        try:
            # Torch makes the tensor that it is given its own.
            setattr(self.layer, self.name, value.clone())
        except RuntimeError as error:
            raise ValueError(
                f"{self.path} cannot be set, since its parametrisation cannot be inverted: {error}"
            ) from error

    def gain(self) -> float:
        """Return the root mean square of W x for independent entries x of mean square 1.

            gain = sqrt(tr(W W^T) / outputs),

        over the outputs of all maps that the weight is made of, as f uses it; NaN of a weight
        without values. Of a square member of an ensemble it is sqrt(V).
        """
        return joint_gain([self])

    def tensors(self) -> list[Tensor]:
        """Return what it is stored in: itself, or what a parametrisation computes it from."""
        if not parametrize.is_parametrized(self.layer, self.name):
            return [getattr(self.layer, self.name)]
        steps = _steps(self.layer, self.name)
        return [*steps.parameters(), *steps.buffers()]


def joint_gain(weights: Sequence[RecurrentWeight]) -> float:
    """Return the gain of several weights together, the mean being over the outputs of all."""
    tiles = [tile for weight in weights for tile in weight.maps.tiles(weight.value())]
    if any(tile.is_meta for tile in tiles):
        return math.nan
    total = sum(float(tile.double().square().sum()) for tile in tiles)
    return math.sqrt(total / sum(len(tile) for tile in tiles))


def set_weights(values: Sequence[tuple[RecurrentWeight, Tensor]]) -> None:
    """Set all of some weights, or none.

    Raises:
        ValueError: one cannot be set.
    """
    tensors = [tensor for weight, _ in values for tensor in weight.tensors()]
    # Torch lets what was made in inference mode be written there alone.
    with torch.inference_mode(any(t.is_inference() for t in tensors)), torch.no_grad():
        before = [(tensor, tensor.detach().clone()) for tensor in tensors]
        try:
            for weight, value in values:
                weight.set(value)
                if not value.is_meta and value.isfinite().all() > weight.value().isfinite().all():
                    raise ValueError(
                        f"{weight.path} is normalised, and an output whose weights are all zero "
                        "has no direction: take a scale above 0"
                    )
        except Exception:
            for tensor, old in before:
                tensor.copy_(old)
            raise


def _steps(layer: nn.Module, name: str) -> nn.Module:
    """The parametrisation of a tensor."""
    steps: Any = layer.parametrizations
    return steps[name]
