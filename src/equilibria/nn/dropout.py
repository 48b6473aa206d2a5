"""Dropout with one mask per forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd  # pyright: ignore[reportPrivateUsage]
from torch.nn.utils import parametrize

from equilibria import draws
from equilibria.nn.frozen import Frozen
from equilibria.nn.normalization import LengthAndDirection, find_layers


class VariationalDropout(nn.Module):
    """Dropout whose mask stays the same in all evaluations of one forward of a `DEQ`.

    y = m * x, where the entries of m are 1 / (1 - p) with probability 1 - p, else 0; all are 0
    where p is 1. With a mask drawn anew at each evaluation there would be no fixed point. It holds
    in the backward of that forward too, whatever the layer did in between. In eval mode y = x.
    Outside a `DEQ` each call draws its mask.

    Two places of a cell that are to have masks of their own need two modules.

    Args:
        p: probability that an entry is dropped, in [0, 1].
        shared: axes, not the batch axis 0, along which the mask is constant: (1,) on
            (batch, time, width) drops a feature at all times, (2, 3) on
            (batch, channels, height, width) drops whole channels.

    Raises:
        ValueError: p is outside [0, 1], or axis 0 is among `shared`. In a call: the input has not
            the shape for which this forward's mask was drawn, or its first axis is not the batch.

    Source:
        Gal and Ghahramani 2016; Bai 2022 (thesis), ch. 3.
    """

    def __init__(self, p: float = 0.5, *, shared: Sequence[int] = ()) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"p is the probability of dropping and must be in [0, 1], got {p}")
        if 0 in shared:
            raise ValueError("axis 0 is the batch, and every sample has a mask of its own")
        self.p = p
        self.shared = tuple(shared)

    def forward(self, x: Tensor) -> Tensor:
        frozen = Frozen.active()
        if frozen is None:
            mask = self._draw(x, x.shape[0])
            return x if mask is None else x * mask
        rows = frozen.rows
        if rows is not None and x.shape[0] != rows.shape[0]:
            raise ValueError(
                f"VariationalDropout got an input of shape {tuple(x.shape)} in an evaluation with "
                f"{rows.shape[0]} samples: its first axis must be the batch"
            )
        batch = x.shape[0] if rows is None or frozen.batch is None else frozen.batch
        mask = frozen.once(self, lambda: self._draw(x, batch))
        if mask is None:
            return x
        if rows is not None:
            mask = mask[rows]
        if mask.shape != self._mask_shape(x, x.shape[0]):
            raise ValueError(
                f"VariationalDropout has a mask of shape {tuple(mask.shape)} in this forward and "
                f"got an input of shape {tuple(x.shape)}: one module has one mask, use a second "
                "VariationalDropout at the second place"
            )
        return x * mask.to(x.dtype)

    def _mask_shape(self, x: Tensor, batch: int) -> torch.Size:
        shape = [batch, *x.shape[1:]]
        for axis in self.shared:
            if axis % x.ndim == 0:
                raise ValueError(
                    f"shared={self.shared} names the batch axis of an input with {x.ndim} axes"
                )
            shape[axis] = 1
        return torch.Size(shape)

    def _draw(self, x: Tensor, batch: int) -> Tensor | None:
        """Draw a mask for `batch` samples like those in x; None where nothing is dropped."""
        if not self.training or self.p == 0:
            return None
        mask = torch.empty(self._mask_shape(x, batch), dtype=x.dtype, device=x.device)
        return _draw_mask(mask, self.p)

    def extra_repr(self) -> str:
        return f"p={self.p}" + (f", shared={self.shared}" if self.shared else "")


def dropout(x: Tensor, p: float, training: bool, *, axis: int = 0) -> Tensor:
    """Return x with entries dropped, as `torch.nn.functional.dropout` does, each call anew.

    Args:
        x: any shape.
        p: probability that an entry is dropped, in [0, 1].
        training: whether any are.
        axis: along which samples are counted: each has a mask of its own, see `draws`.
    """
    if not training or p == 0:
        return x
    return x * _draw_mask(torch.empty_like(x, requires_grad=False), p, axis)


def _draw_mask(mask: Tensor, p: float, axis: int = 0) -> Tensor:
    """Fill a mask with 1 / (1 - p), with probability 1 - p, and 0."""
    return draws.for_samples(mask, draws.keep_mask(p), axis=axis).div_(1 - p if p < 1 else 1.0)


# --- weight dropout -------------------------------------------------------------------------------

# Dropout of connections: zeros in a weight, the same ones in all evaluations of a forward.


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
        return draws.for_batch(mask, draws.keep_mask(self.p))

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
    layers = find_layers(module, "each would get a mask of its own")
    for path, layer in layers:
        if not parametrize.is_parametrized(layer, "weight"):
            continue
        steps = _steps(layer)
        if len(steps) > 1 or type(steps[0]) is not LengthAndDirection:
            name = type(steps[-1]).__name__.lstrip("_")
            raise ValueError(
                f"the weight of '{path}' is parametrised already ({name}): dropout goes on a "
                "plain weight or on one under weight_norm"
            )
    return [layer for _, layer in layers]


def _steps(layer: nn.Module) -> nn.ModuleList:
    return layer.parametrizations["weight"]  # type: ignore[index, return-value]
