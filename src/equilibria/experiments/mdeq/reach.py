"""How far an output of an MDEQ's cell can see after some evaluations: by counting, and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from equilibria.models.vision.cell import MultiscaleCell
from equilibria.models.vision.mdeq import MDEQ, MDEQCellConfig

__all__ = ["Extent", "bounds", "course", "dependence", "field", "measured", "profile"]


@dataclass(frozen=True)
class Extent:
    """Pixels on which the places of a resolution depend.

    The place p of a resolution of stride s lies at the pixel p s, along either axis.

    Attributes:
        before: the most by which such a pixel precedes the place's.
        after: the most by which it follows.
    """

    before: int
    after: int

    @property
    def most(self) -> int:
        """The larger of both."""
        return max(self.before, self.after)

    def wider(self, before: int, after: int) -> Extent:
        """Return the extent of what depends on places up to so far away."""
        return Extent(self.before + before, self.after + after)

    def union(self, other: Extent | None) -> Extent:
        """Return the extent of what depends on both."""
        if other is None:
            return self
        return Extent(max(self.before, other.before), max(self.after, other.after))


Extents = Sequence[Extent | None]
"""One a resolution, the highest first; None for one that depends on nothing yet."""


def bounds(config: MDEQCellConfig, evals: int) -> list[list[Extent | None]]:
    """Return how far z_r can see in an image, for r = 1, ..., `evals` plain evaluations from zeros.

    Counted from strides and kernels alone. GroupNorm is left out: its statistics see everything.

    Args:
        config: of the network.
        evals: evaluations.
    """
    seen, stride = Extent(0, 0), 1
    for layer in range(max(2, config.halvings)):  # the stem's 3x3 convolutions
        seen = seen.wider(stride, stride)
        stride *= 2 if layer < config.halvings else 1
    found: list[list[Extent | None]] = []
    state: Extents = [None] * len(config.channels)
    for _ in range(evals):
        state = _evaluated(state, seen, stride)
        found.append(list(state))
    return found


def field(config: MDEQCellConfig) -> int:
    """Return the reach of one evaluation, in pixels: how far f(z) sees z.

    The place of any resolution that sees farthest, on either side: 2, 5, 11, 23 at 1 to 4
    resolutions. Of the image r evaluations see less than r times as far, since it enters at the
    highest resolution alone.
    """
    here = [Extent(0, 0)] * len(config.channels)
    after = _evaluated(here, Extent(0, 0), 2**config.halvings)
    return max(extent.most for extent in after if extent is not None)


def _evaluated(state: Extents, seen: Extent, stride: int) -> list[Extent | None]:
    """One evaluation: `seen` is the extent of the injection, `stride` that of its places."""
    levels = range(len(state))
    strides = [stride * 2**level for level in levels]
    blocks: list[Extent | None] = []
    for level in levels:  # two 3x3 convolutions; the input is added behind them
        before = state[level]
        wide = None if before is None else before.wider(2 * strides[level], 2 * strides[level])
        blocks.append(wide if level else seen.union(wide))
    fused: list[Extent | None] = []
    for j in levels:
        total = blocks[j]
        for i in levels:
            sent = blocks[i]
            if i == j or sent is None:
                continue
            jump = abs(strides[i] - strides[j])
            # Down, a 3x3 convolution of stride 2 a level: s + 2 s + 4 s + ... on both sides. Up,
            # the nearest place that does not follow: up to a place less one before.
            sent = sent.wider(jump, jump if i < j else 0)
            total = sent.union(total)
        fused.append(total)
    return fused


def course(model: MDEQ, image: Tensor, evals: int) -> list[tuple[Tensor, ...]]:
    """Return the states after 1, ..., `evals` plain evaluations from zeros, connected to the image.

    Args:
        model: in evaluation mode.
        image: (1, channels, height, width).
        evals: evaluations.
    """
    (features,) = model.inject(image)
    cell = cast(MultiscaleCell, model.deq.cell)
    z = cell.start(features)
    found: list[tuple[Tensor, ...]] = []
    for _ in range(evals):
        z = cell(z, features)
        found.append(z)
    return found


def dependence(leaf: Tensor, image: Tensor, place: int) -> Tensor:
    """Return |d y / d pixel|, (height, width), the largest over the colours.

    y is a random combination of the channels at one place of a resolution.

    Args:
        leaf: (1, channels, height, width), connected to the image.
        image: (1, colours, height, width), which requires a gradient.
        place: row and column of y.
    """
    weights = torch.randn(leaf.shape[1], dtype=leaf.dtype, device=leaf.device)
    y = (leaf[0, :, place, place] * weights).sum()
    gradient = None
    if y.requires_grad:
        (gradient,) = torch.autograd.grad(y, image, retain_graph=True, allow_unused=True)
    return torch.zeros_like(image[0, 0]) if gradient is None else gradient[0].abs().amax(0)


def measured(leaf: Tensor, image: Tensor) -> Extent | None:
    """Return the extent of the pixels whose gradient is not exactly zero; None where all are.

    Of two places: one where all coarser resolutions have one too, and the place before it, whose
    nearest coarser ones are the farthest away.

    Args:
        leaf: (1, channels, places, places), connected to the image.
        image: (1, colours, size, size), which requires a gradient.
    """
    stride = image.shape[-1] // leaf.shape[-1]
    middle, found = leaf.shape[-1] // 2, None
    for place in (middle, middle - 1):
        spots = dependence(leaf, image, place).detach().nonzero()
        if len(spots):
            offsets = spots - place * stride
            extent = Extent(max(0, -int(offsets.min())), max(0, int(offsets.max())))
            found = extent.union(found)
    return found


def profile(gradient: Tensor, middle: int) -> list[float]:
    """Return the largest |gradient| at each distance from a pixel, that at its largest being 1.

    The distance is that of the farther axis.

    Args:
        gradient: (size, size).
        middle: row and column of the pixel.
    """
    away = (torch.arange(gradient.shape[0], device=gradient.device) - middle).abs()
    distance = torch.maximum(away[:, None], away[None])
    most = gradient.new_zeros(int(distance.max()) + 1)
    most = most.scatter_reduce(0, distance.flatten(), gradient.flatten(), "amax")
    return (most / most.max()).tolist()
