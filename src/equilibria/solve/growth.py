"""Tells a residual that has fallen from one that is small only beside a state that has grown."""

from __future__ import annotations

import torch
from torch import Tensor

# A state is trusted until f(z) is so many times as large as at the start: its relative residual,
# which was 1 at most for a start at zero, can't have been pressed down by size alone.
GROWTH = 4.0
# What must be left, at most, of the largest residual on the way once it has grown further.
SHARE = 0.03
LONGEST = 64  # evaluations that are remembered one by one


class Path:
    """The lengths of the residual and of f(z) on the way, one number a sample and evaluation.

    z <- z + 1 meets any relative tolerance once z is large. So where f(z) has outgrown its start,

        ||f(z)|| > GROWTH S,  S = max(||f(z_0)||, ||f(z_0) - z_0||),

    the residual itself must have fallen below SHARE times the largest on the way,

        R = max_k min(||r_k||, ||r_k|| ||f(z)|| / ||f(z_k)||),  r_k = f(z_k) - z_k,

    where the second keeps an excursion far out from lending its size to what is found near. The
    first residual would not do in place of R: from a start near an unstable fixed point residuals
    grow by many orders before they fall.

    Args:
        origin: length of f(0), where 0 is taken for the start whatever the start is: that of an
            affine map, whose residual there is the constant term.

    Attributes:
        start: S, `(samples,)`.
    """

    def __init__(self, origin: Tensor | None = None) -> None:
        self.start = torch.empty(0) if origin is None else origin
        self.sizes: list[Tensor] = [] if origin is None else [origin]
        self.scales: list[Tensor] = list(self.sizes)

    def add(self, size: Tensor, scale: Tensor) -> None:
        """Takes note of an evaluation: ||f(z) - z|| and ||f(z)||."""
        if not self.sizes:
            self.start = torch.maximum(size, scale)
        self.sizes.append(size)
        self.scales.append(scale)
        if len(self.sizes) >= LONGEST:
            self._fold(scale)

    def grown(self, scale: Tensor) -> Tensor:
        """Has ||f(z)|| outgrown the start?"""
        return scale > GROWTH * self.start

    def left(self, size: Tensor, scale: Tensor, absolute: Tensor | float = 0.0) -> Tensor:
        """||f(z) - z|| over what is allowed of it where f(z) has grown: at 1 it has fallen enough.

        What f(z) was rounded by counts as well: far out z + 1 is z.

        Args:
            absolute: the absolute tolerance, as a length.
        """
        rounding = torch.finfo(scale.dtype).eps * scale
        largest = _seen(torch.stack(self.sizes), torch.stack(self.scales), scale).amax(dim=0)
        return (size + rounding) / (absolute + SHARE * largest)

    def select(self, index: Tensor) -> None:
        """Keeps the samples named by `index`."""
        self.start = self.start.index_select(0, index)
        self.sizes = [size.index_select(0, index) for size in self.sizes]
        self.scales = [scale.index_select(0, index) for scale in self.scales]

    def _fold(self, scale: Tensor) -> None:
        """Of each sample three evaluations stay, so that memory does not grow with their number:
        that with the largest residual, the largest relative one, and the largest at this size."""
        sizes, scales = torch.stack(self.sizes), torch.stack(self.scales)
        kept = [sizes, sizes / scales, _seen(sizes, scales, scale)]
        places = torch.stack([each.argmax(dim=0) for each in kept])
        self.sizes = list(sizes.gather(0, places).unbind())
        self.scales = list(scales.gather(0, places).unbind())


def _seen(sizes: Tensor, scales: Tensor, scale: Tensor) -> Tensor:
    """Residuals as they would be if f(z) had been no larger than `scale`."""
    return torch.fmin(sizes, sizes * (scale / scales))  # fmin: 0 / 0 says nothing
