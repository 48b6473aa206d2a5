"""What is done to training images at random, drawn for each sample; see `draws`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from equilibria import draws
from equilibria.zoo.io import crops


def shifted(images: Tensor, limit: int) -> Tensor:
    """Return images (n, channels, height, width), each moved by its own random number of pixels.

    Both numbers, down and right, are uniform from -`limit` to `limit`; the edge is repeated where
    nothing is left to show.
    """
    count, channels, height, width = images.shape
    padded = functional.pad(images, (limit, limit, limit, limit), mode="replicate")
    corner = ((2 * limit + 1) * _uniform(count, 2)).long()
    rows = corner[:, :1] + torch.arange(height)
    columns = corner[:, 1:] + torch.arange(width)
    return padded[
        torch.arange(count)[:, None, None, None],
        torch.arange(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def flipped(images: Tensor) -> Tensor:
    """Return images (n, channels, height, width), each mirrored left to right or not, evenly."""
    mirrored = _uniform(len(images), 1) < 0.5
    return torch.where(mirrored[:, :, None, None], images.flip(-1), images)


def cropped(images: Tensor, smallest: float) -> Tensor:
    """Return images (n, channels, height, width), each a random part of it at the full size.

    The part is a box of `crops.boxes`; its pixels are interpolated linearly, with the edge of the
    image beyond it. A part is never larger than the image: nothing is averaged, so that nothing
    can alias.

    Args:
        images: (n, channels, height, width).
        smallest: minimum share of the area that a part has, in (0, 1].
    """
    count, _, height, width = images.shape
    box = crops.boxes(_uniform(count, 4), smallest, height, width)
    top, left, high, wide = box.unbind(1)
    # grid_sample's -1 and 1 are the outer edges of the image.
    scale = torch.stack([wide / width, high / height], 1)
    centre = torch.stack([(2 * left + wide) / width, (2 * top + high) / height], 1) - 1
    theta = torch.cat([torch.diag_embed(scale), centre.unsqueeze(2)], 2).to(images.dtype)
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def _uniform(count: int, numbers: int) -> Tensor:
    """Draw so many numbers in [0, 1) for each of `count` samples."""
    return draws.for_samples(torch.empty(count, numbers, dtype=torch.float64), Tensor.uniform_)
