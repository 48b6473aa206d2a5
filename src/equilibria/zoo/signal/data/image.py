"""Images: read from files with 8 bits a channel, written as PNG."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.errors import DataError
from equilibria.run.data.replace import replace_file
from equilibria.zoo.io import picture
from equilibria.zoo.io.resize import resized
from equilibria.zoo.signal.data.signal import Signal

__all__ = ["of_pixels", "pixels_of", "png", "png_of", "read_image", "square", "write_image"]


def read_image(path: str | os.PathLike[str], size: tuple[int, int] | None = None) -> Signal:
    """Read an image, grey or RGB, upright, 0 to 255 as -1 to 1.

    A palette and CMYK become RGB; an alpha channel that is opaque everywhere is left out.

    Args:
        path: A file that Pillow reads.
        size: Height and width to which it is brought by means over areas; None for its own.

    Raises:
        DataError: If the file cannot be read, is no image or damaged; has more than 8 bits a
            channel or is transparent somewhere; is constant, or has a side of one pixel.
    """
    path = Path(path)
    return of_pixels(picture.read(path), path.name, size)


def of_pixels(pixels: Tensor, name: str, size: tuple[int, int] | None = None) -> Signal:
    """An image of pixels, uint8, ``(channels, height, width)``, perhaps at another size.

    Raises:
        DataError: If it is constant, or has a side of one pixel.
    """
    if size is not None:
        pixels = resized(pixels[None].float(), size)[0]
    values = pixels.permute(1, 2, 0)
    return Signal.of("image", values, name, low=0.0, high=255.0, bits=8)


def square(pixels: Tensor) -> Tensor:
    """The largest square in the middle of pixels, ``(channels, height, width)``."""
    side = min(pixels.shape[1:])
    top, left = ((length - side) // 2 for length in pixels.shape[1:])
    return pixels[:, top : top + side, left : left + side]


def pixels_of(values: Tensor) -> np.ndarray:
    """Values in [-1, 1], ``(..., channels)``, as pixels of 8 bits; what is outside is cut.

    Raises:
        DataError: If one is not finite.
    """
    values = values.detach().cpu().double()
    if not bool(values.isfinite().all()):
        raise DataError("a picture has values that are NaN or infinite: nothing is written")
    return ((values.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).numpy()


def png(values: Tensor) -> bytes:
    """Values in [-1, 1], ``(height, width, 1 or 3)``, as a PNG file.

    Raises:
        ValueError: If the shape is another.
        DataError: If a value is not finite.
    """
    if values.ndim != 3 or values.shape[2] not in (1, 3) or not values.numel():
        raise ValueError(
            f"values of the shape {tuple(values.shape)}: expected (height, width, 1 or 3)"
        )
    return png_of(pixels_of(values))


def png_of(pixels: np.ndarray) -> bytes:
    """Pixels, uint8, ``(height, width, 1 or 3)``, as a PNG file."""
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(content, "PNG")
    return content.getvalue()


def write_image(path: str | os.PathLike[str], values: Tensor) -> None:
    """Write an image as PNG, whole or not at all.

    Args:
        path: Ends with ``.png``.
        values: In [-1, 1], ``(height, width, 1 or 3)``; what is outside is cut.

    Raises:
        ValueError: If the ending or the shape is another.
        DataError: If a value is not finite, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"images are written to .png files; got {path.name}")
    replace_file(path, png(values))
