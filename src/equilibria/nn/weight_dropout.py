"""Dropout of connections: zeros in a weight, the same ones in all evaluations of a forward."""

from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from equilibria import draws
from equilibria.nn.normalisation import _LengthAndDirection, weighted_layers

__all__ = ["weight_dropout"]

_Module = TypeVar("_Module", bound=nn.Module)


def weight_dropout(module: _Module, p: float = 0.5) -> _Module:
    """Drop entries of the weights of linear and convolutional layers in training.

    w = m * v, where the entries of m are 1 / (1 - p) with probability 1 - p, else 0; in eval mode
    w = v. After `weight_norm`, which is to be called first, the entries are those of the direction,
    w = g (m * v) / |m * v|, so that the length of each output's weights stays what it is; an output
    that would lose all of them keeps them.

    It is a torch parametrisation: each time that the weight is asked for, a mask is drawn. A `DEQ`
    asks once per forward, so that its cell is one function throughout the solve and its backward.
    All samples of the batch share the mask.

    Args:
        module: one such layer or any module that contains some; changed in place.
        p: probability that an entry is dropped, in [0, 1).

    Returns:
        The same module.

    Raises:
        ValueError: p is outside [0, 1); the module contains no such layer; a weight is shared by
            two layers, has a parametrisation other than `weight_norm`, or is not yet initialised.

    Source:
        Wan et al. 2013 (DropConnect); Merity et al. 2018, sec. 2 (on recurrent weights); Bai et al.
        2019 (TrellisNet), on the direction of normalised weights.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p is the probability of dropping and must be in [0, 1), got {p}")
    for layer in _targets(module):
        if parametrize.is_parametrized(layer, "weight"):
            steps = _steps(layer)
            steps[0] = _DroppedDirection(steps[0], p)
        else:
            parametrize.register_parametrization(layer, "weight", _DroppedEntries(p))
    return module


class _DroppedEntries(nn.Module):
    """The parametrisation v -> m * v, with a new mask m at each call in training."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, weight: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return weight
        return weight * self._draw(weight).div_(1 - self.p)

    def right_inverse(self, weight: Tensor) -> Tensor:
        return weight

    def _draw(self, weight: Tensor) -> Tensor:
        mask = torch.empty_like(weight, requires_grad=False)
        return draws.for_batch(mask, draws.kept(self.p))

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _DroppedDirection(_DroppedEntries):
    """The parametrisation (g, v) -> norm(g, m * v), where `norm` is that of `weight_norm`."""

    def __init__(self, norm: nn.Module, p: float) -> None:
        super().__init__(p)
        self.norm = norm

    def forward(self, length: Tensor, direction: Tensor) -> Tensor:  # type: ignore[override]
        if self.training and self.p > 0:
            mask = self._draw(direction)
            # A direction of zeros has no length to divide by.
            axes = [axis for axis in range(mask.ndim) if length.shape[axis] == 1]
            direction = direction * (mask + (mask.sum(axes, keepdim=True) == 0))
        return self.norm(length, direction)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.norm.right_inverse(weight)  # type: ignore[operator]


def _targets(module: nn.Module) -> list[nn.Linear | _ConvNd]:
    """The linear and convolutional layers, after checking all of them."""
    layers = weighted_layers(module, "each would get a mask of its own")
    for path, layer in layers:
        if not parametrize.is_parametrized(layer, "weight"):
            continue
        steps = _steps(layer)
        if len(steps) > 1 or type(steps[0]) is not _LengthAndDirection:
            name = type(steps[-1]).__name__.lstrip("_")
            raise ValueError(
                f"the weight of '{path}' is parametrised already ({name}): dropout goes on a "
                "plain weight or on one under weight_norm"
            )
    return [layer for _, layer in layers]


def _steps(layer: nn.Module) -> nn.ModuleList:
    return layer.parametrizations["weight"]  # type: ignore[index, return-value]
