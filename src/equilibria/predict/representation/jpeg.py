"""JPEG beside an encoded image: at its size, and at its PSNR."""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np
import torch

from equilibria.data.signals import Signal
from equilibria.data.signals.image import pixels_of

__all__ = ["Beside", "Jpeg", "beside"]

QUALITIES = range(1, 101)
"""Pillow's."""


class Jpeg(NamedTuple):
    """An image as JPEG."""

    quality: int
    """From 1 to 100."""
    bytes: int
    """Size of the file."""
    psnr: float
    """In dB."""


class Beside(NamedTuple):
    """What JPEG does with an image."""

    same_size: Jpeg | None
    """The best of at most that many bytes; None where each is larger."""
    same_psnr: Jpeg | None
    """The smallest with at least that PSNR; None where none has it."""


def beside(signal: Signal, size: int, psnr: float) -> Beside:
    """Return what JPEG does with an image at a size, and at a PSNR.

    Pillow writes it with optimised Huffman tables, colours at half the resolution and at the full
    one, at all qualities.

    Args:
        signal: the image, with 1 or 3 channels.
        size: in bytes.
        psnr: in dB, see `Signal.psnr`.

    Raises:
        ValueError: it is no such image.
    """
    if signal.field.kind != "image" or signal.field.channels not in (1, 3):
        raise ValueError(f"{signal.name} is no image in grey or RGB, so there is no JPEG of it")
    pixels = pixels_of(signal.values)
    samplings = (2, 0) if pixels.shape[2] == 3 else (2,)
    found = [_jpeg(signal, pixels, q, sampling) for q in QUALITIES for sampling in samplings]
    small = [each for each in found if each.bytes <= size]
    good = [each for each in found if each.psnr >= psnr]
    return Beside(
        max(small, key=lambda each: each.psnr, default=None),
        min(good, key=lambda each: each.bytes, default=None),
    )


def _jpeg(signal: Signal, pixels: np.ndarray, quality: int, sampling: int) -> Jpeg:
    from PIL import Image

    image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    content = io.BytesIO()
    image.save(content, "JPEG", quality=quality, subsampling=sampling, optimize=True)
    size = content.tell()
    decoded = torch.from_numpy(np.array(Image.open(content))).reshape(pixels.shape)
    return Jpeg(quality, size, signal.psnr(signal.field.normalised(decoded)))
