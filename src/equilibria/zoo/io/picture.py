"""A picture with 8 bits a channel and nothing transparent, upright; others are refused by name."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.errors import DataError, reading
from equilibria.zoo.io import decode

__all__ = ["read"]

_GREY = ("1", "L", "LA", "La")


def read(path: Path, *, grey: str | None = None) -> Tensor:
    """Read a picture whose values mean what a viewer shows.

    It is turned upright. A palette, CMYK and the like become RGB; an alpha channel that is opaque
    everywhere is left out.

    Args:
        path: Its file.
        grey: Why a grey picture is refused; None reads it.

    Returns:
        uint8, ``(3, height, width)``, or ``(1, height, width)`` of a grey picture.

    Raises:
        DataError: If the file cannot be read, is no image or damaged; has more than 8 bits a
            channel, or is transparent somewhere; or is grey where that is refused. The message
            names it and says what to do.
    """
    with decode.open_image(path) as file, reading(path):
        content = file.read()
    image = decode.identified(io.BytesIO(content), path)
    decode.refuse_pages(image, path)
    mode = image.mode
    if mode.startswith(("I", "F")) or _deep_png(content):
        raise DataError(
            f"{path} has more than 8 bits a channel: convert it, for example with ImageMagick: "
            "magick FILE -depth 8 PNG24:FILE.png"
        )
    if grey and mode in _GREY:
        raise DataError(
            f"{path} is {grey}: convert it to RGB, for example with ImageMagick: magick FILE "
            "-depth 8 PNG24:FILE.png"
        )
    try:
        stored = decode.orientation(image)
        image.load()
        image = decode.upright(image, stored)
        if "A" in mode or "a" in mode or "transparency" in image.info:
            image = image.convert("RGBA")
            lowest = image.getchannel("A").getextrema()[0]
            if isinstance(lowest, int | float) and lowest < 255:
                raise DataError(
                    f"{path} is transparent in places, and what lies behind is not known: remove "
                    "its alpha channel, for example with ImageMagick: magick FILE -background "
                    "black -alpha remove PNG24:FILE.png"
                )
        found = np.array(image.convert("L" if mode in _GREY else "RGB"))
    except DataError:
        raise
    except Exception as error:  # what a damaged file raises depends on its format
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} is damaged ({reason}): remove or replace it") from None
    pixels = found.reshape(*found.shape[:2], -1).transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(pixels))


def _deep_png(content: bytes) -> bool:
    """Whether it is a PNG file of 16 bits a channel, of which Pillow gives the upper 8 of RGB."""
    return re.match(rb"\x89PNG\r\n\x1a\n.{4}IHDR.{8}\x10", content, re.DOTALL) is not None
