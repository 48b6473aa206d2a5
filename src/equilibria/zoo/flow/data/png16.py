"""PNG files with 16 bits for red, green and blue, which Pillow reads as 8 bits."""

from __future__ import annotations

import io
import zlib
from pathlib import Path

import numpy as np

from equilibria.run.data.errors import DataError
from equilibria.run.data.extras import needed
from equilibria.zoo.flow.data.content import LARGEST, check_size, read_bytes, replace_file

__all__ = ["read", "write"]

_PIXEL = 6
"""Bytes of a pixel."""


def read(path: Path) -> np.ndarray:
    """Read an image of 16-bit RGB.

    Returns:
        uint16, ``(height, width, 3)``.

    Raises:
        DataError: If it is no PNG file, truncated or damaged, or has other pixels.
    """
    png = needed("png", "pypng", "cli", f"the 16-bit image {path}")
    reader = png.Reader(bytes=read_bytes(path, _PIXEL * LARGEST))
    try:
        reader.preamble()
        check_size(reader.height, reader.width, path)
        if (reader.bitdepth, reader.color_type) != (16, 2):
            raise DataError(
                f"{path} is a PNG file of {reader.planes} times {reader.bitdepth} bits: expected "
                "16-bit RGB, as of KITTI's flow"
            )
        width, height, rows, _ = reader.read()
        pixels = np.vstack([np.asarray(row, np.uint16) for row in rows])
        return pixels.reshape(height, width, 3)
    except (png.Error, zlib.error, EOFError, ValueError, IndexError) as error:
        raise DataError(f"{path} is no PNG file, truncated or damaged: {error}") from None


def write(path: Path, pixels: np.ndarray) -> None:
    """Write an image of 16-bit RGB.

    Args:
        path: The file.
        pixels: uint16, ``(height, width, 3)``.

    Raises:
        DataError: If the file cannot be written.
    """
    height, width = pixels.shape[:2]
    png = needed("png", "pypng", "cli", f"the 16-bit image {path}")
    content = io.BytesIO()
    writer = png.Writer(width, height, bitdepth=16, greyscale=False)
    writer.write(content, pixels.reshape(height, -1).tolist())
    replace_file(path, content.getvalue())
