"""Random parts of an image: which box is cut out."""

from __future__ import annotations

import math

import torch
from torch import Tensor

NARROWEST = 3 / 4
"""The minimum ratio of width to height; the maximum is its inverse."""


def draw(count: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw what decides `count` boxes: four numbers in [0, 1) for each, ``(count, 4)``."""
    return torch.rand(count, 4, dtype=torch.float64, generator=generator)


def boxes(drawn: Tensor, smallest: float, height: int, width: int) -> Tensor:
    """Return boxes in an image: its share of the area is uniform from `smallest` to 1.

    The logarithm of width over height is uniform between those of 3/4 and 4/3, and the place
    uniform among those within the image; a side that would be longer than the image's is as long.

    Args:
        drawn: Of `draw`, ``(count, 4)``.
        smallest: Least share of the area, in (0, 1].
        height: Of the image, in pixels.
        width: Of the image, in pixels.

    Returns:
        Top, left, height and width in pixels, not whole numbers, ``(count, 4)``.

    Source: Szegedy et al. 2015, sec. 6 (training on patches of 8 to 100 % of the area).
    """
    share, ratio, down, right = drawn.unbind(1)
    area = (smallest + (1 - smallest) * share) * (height * width)
    ratio = torch.exp((1 - 2 * ratio) * math.log(NARROWEST))
    wide = (area * ratio).sqrt().clamp(max=width)
    high = (area / ratio).sqrt().clamp(max=height)
    return torch.stack([down * (height - high), right * (width - wide), high, wide], 1)
