"""Images, masks and maps as PNG of a size to look at."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Size = tuple[int, int]
"""Height and width, in pixels."""

_LEAST = 120
"""Height below which images are enlarged."""

_MOST = (180, 360)
"""Height and width above which they are reduced."""

_RAMP = torch.tensor(
    [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]
).double()
"""Colours from low to high, at equal distances: those of matplotlib's viridis."""


def size_to_look_at(height: int, width: int) -> Size:
    """Return the height and width that an image is shown at.

    A small one is enlarged by a whole factor, so that its pixels stay squares; a large one is
    reduced.
    """
    share = min(1.0, _MOST[0] / height, _MOST[1] / width)
    if share < 1:
        return max(1, round(share * height)), max(1, round(share * width))
    factor = max(1, min(math.ceil(_LEAST / height), _MOST[1] // width))
    return factor * height, factor * width


def image_png(image: Tensor, size: Size) -> bytes:
    """Return an image as a PNG.

    Args:
        image: pixels in [0, 1], (1 or 3 channels, height, width); others are clipped.
        size: to bring it to: over as many pixels as one covers, or as squares.
    """
    from PIL import Image

    pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).cpu()
    array = pixels[0] if len(pixels) == 1 else pixels.movedim(0, -1)
    found = Image.fromarray(array.contiguous().numpy())
    enlarged = size[0] >= image.shape[1]
    way = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
    return _to_png(found.resize((size[1], size[0]), way))


def numbers_png(numbers: Tensor, colors: Sequence[Sequence[int]], size: Size) -> bytes:
    """Return a map of numbers as a PNG with a palette: its pixels still are the numbers.

    Args:
        numbers: below 256, (height, width); those that have no colour are transparent.
        colors: red, green and blue of 0, 1, 2, ...
        size: to bring it to, with the nearest pixels.
    """
    from PIL import Image

    # A PNG's transparent entry is one number: all that have no colour become it.
    empty = min(len(colors), 255)
    held = numbers.clamp(max=empty).to(torch.uint8).cpu().contiguous()
    found = Image.fromarray(held.numpy(), "P")
    palette = [*colors[:256], (0, 0, 0)][:256]
    found.putpalette([channel for color in palette for channel in color])
    shown = found.resize((size[1], size[0]), Image.Resampling.NEAREST)
    options: dict[str, Any] = {"transparency": empty} if len(colors) < 256 else {}
    return _to_png(shown, **options)


def make_colors(count: int) -> list[tuple[int, int, int]]:
    """Return `count` colours that rise from dark to bright."""
    places = torch.linspace(0, len(_RAMP) - 1, max(2, count)).double()[:count]
    low = places.floor().long().clamp(max=len(_RAMP) - 2)
    part = (places - low)[:, None]
    found = (_RAMP[low] * (1 - part) + _RAMP[low + 1] * part).round().int().tolist()
    return [(r, g, b) for r, g, b in found]


def _to_png(image: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True, **options)
    return buffer.getvalue()
