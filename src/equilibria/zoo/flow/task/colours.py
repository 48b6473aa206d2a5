"""Colours of pairs of images, changed at random, and rectangles that cover a part of one."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["erased", "recoloured", "turned"]

_GREY = (0.299, 0.587, 0.114)  # Rec. 601: the weights of red, green and blue


def recoloured(
    first: Tensor, second: Tensor, one: Tensor, other: Tensor, apart: Tensor
) -> tuple[Tensor, Tensor]:
    """Return pairs of images with other brightness, contrast, saturation and hue, in this order.

    Contrast is the distance from the mean grey, of both images where they change alike.

    Args:
        first: RGB from 0 to 255, float32, (batch, 3, height, width).
        second: the same.
        one: factors of brightness, contrast and saturation of the first images, and the angle by
            which hues are turned, in turns, (batch, 4).
        other: those of the second images.
        apart: whether both have factors of their own, bool, (batch,).
    """
    images, numbers = torch.cat([first, second]), torch.cat([one, other])
    brightness, contrast, saturation, hue = numbers[:, :, None, None, None].unbind(1)
    images = (images * brightness).clamp(0.0, 255.0)
    own = _grey(images).mean((1, 2, 3), keepdim=True)
    both = own.unflatten(0, (2, -1)).mean(0).repeat(2, 1, 1, 1)
    mean = torch.where(apart.repeat(2)[:, None, None, None], own, both)
    images = (mean + contrast * (images - mean)).clamp(0.0, 255.0)
    grey = _grey(images)
    images = (grey + saturation * (images - grey)).clamp(0.0, 255.0)
    if bool((hue != 0).any()):
        images = turned(images, hue[:, 0])
    one_half, other_half = images.chunk(2)
    return one_half, other_half


def turned(images: Tensor, hue: Tensor) -> Tensor:
    """Return images whose hues are turned; value and chroma stay as they are.

    Args:
        images: RGB, (batch, 3, height, width).
        hue: angles in turns, of a shape that (batch, height, width) can be combined with.
    """
    red, green, blue = images.unbind(1)
    value = images.amax(1)
    chroma = value - images.amin(1)
    safe = chroma.clamp(min=1e-12)
    sixth = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    sixth = sixth + 6 * hue
    # How far a channel is below the value, by its distance from where the hue has it largest.
    parts = []
    for offset in (5, 3, 1):
        k = (offset + sixth) % 6
        parts.append(value - chroma * torch.minimum(k, 4 - k).clamp(0.0, 1.0))
    return torch.stack(parts, 1)


def erased(images: Tensor, corners: Tensor, sides: Tensor, there: Tensor) -> Tensor:
    """Return images of which a rectangle is covered with their mean colour.

    Args:
        images: (batch, channels, height, width).
        corners: top and left of the rectangles, in pixels, (batch, 2); what is beyond the edge is
            cut off.
        sides: their heights and widths, (batch, 2).
        there: which images have one, bool, (batch,).
    """
    inside = list[Tensor]()
    for axis in (0, 1):
        places = torch.arange(images.shape[2 + axis])
        begin, side = corners[:, axis, None], sides[:, axis, None]
        inside.append((places >= begin.floor()) & (places < (begin + side).floor()))
    covered = inside[0][:, :, None] & inside[1][:, None] & there[:, None, None]
    return torch.where(covered[:, None], images.mean((2, 3), keepdim=True), images)


def _grey(images: Tensor) -> Tensor:
    weights = torch.tensor(_GREY, dtype=images.dtype)
    return torch.einsum("nchw,c->nhw", images, weights)[:, None]
