"""Where what is shown of images lies in them, and the pixels and flows that this gives."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Placing", "placed", "scattered"]


@dataclass(frozen=True, kw_only=True)
class Placing:
    """The part of each image of a batch that is shown, and how large.

    All tensors are (batch, 2), first downwards and then to the right.

    Attributes:
        size: height and width of the images.
        shown: height and width of what is shown.
        scale: how many pixels one of the image becomes along each side.
        begin: where the part begins, in pixels of the scaled image.
        flip: whether it is mirrored, bool.
    """

    size: tuple[int, int]
    shown: tuple[int, int]
    scale: Tensor
    begin: Tensor
    flip: Tensor

    @classmethod
    def drawn(
        cls,
        size: tuple[int, int],
        shown: tuple[int, int],
        scale: Tensor,
        chance: Tensor,
        flip: Tensor,
    ) -> Placing:
        """Return the placing at a random place.

        Args:
            size: height and width of the images.
            shown: height and width of what is shown; no larger than a scaled image.
            scale: as in the attribute.
            chance: numbers in [0, 1) that decide where the part begins.
            flip: as in the attribute.
        """
        spare = (torch.tensor(size) * scale - torch.tensor(shown)).clamp(min=0.0)
        # Without scaling, whole pixels: in between two of them the image would be blurred.
        whole = (chance * (spare + 1)).floor().minimum(spare)
        begin = torch.where(scale == 1.0, whole, chance * spare)
        return cls(size=size, shown=shown, scale=scale, begin=begin, flip=flip)

    @property
    def trivial(self) -> bool:
        """Whether all images are shown as they are."""
        still = bool((self.scale == 1.0).all()) and not bool(self.flip.any())
        return still and self.size == self.shown

    @property
    def factors(self) -> Tensor:
        """What flows, to the right and downwards, are multiplied with, (batch, 2)."""
        return torch.where(self.flip, -self.scale, self.scale).flip(1)

    def sources(self, axis: int) -> Tensor:
        """Return the places in the images of what is shown along an axis, (batch, shown)."""
        steps = torch.arange(self.shown[axis])
        steps = torch.where(self.flip[:, axis, None], steps.flip(0), steps)
        return (self.begin[:, axis, None] + steps + 0.5) / self.scale[:, axis, None] - 0.5

    def targets(self, places: Tensor, images: Tensor, axis: int) -> Tensor:
        """Return where pixels of the images are shown along an axis, as real numbers.

        Args:
            places: of the pixels, (pixels,).
            images: which image of the batch each is in, (pixels,).
            axis: 0 downwards, 1 to the right.
        """
        scale, begin = self.scale[images, axis], self.begin[images, axis]
        shown = (places + 0.5) * scale - begin - 0.5
        return torch.where(self.flip[images, axis], self.shown[axis] - 1 - shown, shown)


def placed(images: Tensor, placing: Placing, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return what is shown of images, interpolated linearly, and where it is known.

    Args:
        images: (batch, channels, height, width).
        placing: where.
        valid: pixels that are known, bool, (batch, height, width); None for all. What is shown is
            known where all that it is interpolated from is.
    """
    height, width = placing.size
    high, wide = placing.shown
    # grid_sample's -1 and 1 are the outer edges.
    rows = (2 * placing.sources(0) + 1) / height - 1
    columns = (2 * placing.sources(1) + 1) / width - 1
    shape = (len(images), high, wide)
    grid = torch.stack([columns[:, None].expand(shape), rows[:, :, None].expand(shape)], 3)
    if valid is None:
        shown = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
        return shown, torch.ones(shape, dtype=torch.bool)
    known = valid[:, None]
    # What is unknown may be anything, even no number.
    images = torch.cat([torch.where(known, images, 0.0), known.to(images)], 1)
    shown = functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    return shown[:, :-1], shown[:, -1] > 0.999


def scattered(flow: Tensor, valid: Tensor, placing: Placing) -> tuple[Tensor, Tensor]:
    """Return the flow that is shown where it is known at single pixels, and where that is.

    Each known pixel is moved to the nearest one that is shown; where several are, the last in the
    order of rows is taken.

    Args:
        flow: (batch, 2, height, width), in pixels of the images.
        valid: where it is known, bool, (batch, height, width).
        placing: where.

    Returns:
        Flow (batch, 2, *shown), 0 where it is not known, and where it is, (batch, *shown).
    """
    count, (high, wide) = len(flow), placing.shown
    images, rows, columns = valid.nonzero().unbind(1)
    down = placing.targets(rows, images, 0).round().long()
    right = placing.targets(columns, images, 1).round().long()
    inside = (down >= 0) & (down < high) & (right >= 0) & (right < wide)
    index = ((images * high + down) * wide + right)[inside]
    # Not by assignment, whose order is undefined where several have one index.
    order = torch.arange(len(index))
    latest = torch.full((count * high * wide,), -1).scatter_reduce_(0, index, order, "amax")
    known = latest >= 0
    values = flow[images, :, rows, columns][inside] * placing.factors[images[inside]]
    shown = torch.zeros(count * high * wide, 2, dtype=flow.dtype)
    shown[known] = values[latest[known]]
    return shown.view(count, high, wide, 2).permute(0, 3, 1, 2), known.view(count, high, wide)
