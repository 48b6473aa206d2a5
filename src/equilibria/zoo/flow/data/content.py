"""Bytes of flow files: read whole, written whole or not at all."""

from __future__ import annotations

import io
import lzma
from pathlib import Path
from typing import BinaryIO, cast

from equilibria.run.data.errors import DataError, reading
from equilibria.run.data.regular import open_file
from equilibria.run.data.replace import replace_file

__all__ = ["LARGEST", "UNKNOWN", "check_size", "read_bytes", "replace_file"]

UNKNOWN = 1e10
"""What stands for the flow of a pixel whose flow is unknown, in .flo and .pfm files."""

LARGEST = 64_000_000
"""Pixels of a flow, at most, as of images."""


def check_size(height: int, width: int, path: Path) -> None:
    """Raise DataError unless a flow can have that height and width."""
    if height < 1 or width < 1 or height * width > LARGEST:
        raise DataError(
            f"{path} says that it has {height} x {width} pixels (height x width): expected at "
            f"least 1 x 1 and at most {LARGEST:,} pixels. It is damaged, or of another format"
        )


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a file; one that ends with ``.xz`` is unpacked.

    Args:
        path: The file.
        most: Bytes that are read; where there are more, one more is.

    Raises:
        DataError: If it cannot be read, or its packing is damaged.
    """
    packed = path.suffix.lower() == ".xz"
    with (
        reading(path, lzma.LZMAError, EOFError),
        open_file(path) as stored,
        lzma.open(stored) if packed else stored as opened,
    ):
        file = cast(BinaryIO, opened)
        content = io.BytesIO()
        while content.tell() <= most and (block := file.read(most + 1 - content.tell())):
            content.write(block)
        return content.getvalue()
