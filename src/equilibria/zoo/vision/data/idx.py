"""The idx format of the MNIST files: a header, then the entries as they lie in memory."""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from equilibria.run.data.errors import DataError, reading
from equilibria.run.data.regular import open_file

_UNSIGNED_BYTE = 0x08
_AXES = 32  # as many as every version of numpy has
_BLOCK = 1 << 20


def read(path: Path) -> np.ndarray:
    """Read an idx file of unsigned bytes, gzipped where its name ends in ``.gz``.

    The header is two zero bytes, one byte for the type of an entry, one for the number of axes
    and a big-endian uint32 for the length of each axis. No more is unpacked than it says.

    Returns:
        An array of uint8 in the shape that the header gives.

    Raises:
        DataError: If the file cannot be read, is damaged, or is another one.
    """
    with reading(path, gzip.BadGzipFile, EOFError, zlib.error), open_file(path) as stored:
        if path.suffix != ".gz":
            return _read(stored, path)
        with gzip.open(stored) as file:
            return _read(cast(BinaryIO, file), path)


def _read(file: BinaryIO, path: Path) -> np.ndarray:
    head = file.read(4)
    if len(head) < 4 or head[:3] != bytes((0, 0, _UNSIGNED_BYTE)):
        raise DataError(
            f"{path} is not an idx file of unsigned bytes: it begins with "
            f"{head.hex(' ') or 'nothing'}, expected 00 00 08 and the number of axes"
        )
    axes = head[3]
    if axes > _AXES:
        raise DataError(f"{path} is damaged: its header says {axes} axes, at most {_AXES} can be")
    lengths = file.read(4 * axes)
    if len(lengths) < 4 * axes:
        raise DataError(f"{path} is truncated: its header ends after {4 + len(lengths)} bytes")
    shape = struct.unpack(f">{axes}I", lengths)
    count = math.prod(shape)  # in Python's integers, which do not overflow
    content = bytearray()
    while len(content) <= count and (block := file.read(min(_BLOCK, count + 1 - len(content)))):
        content += block
    if len(content) != count:
        found = "more" if len(content) > count else f"{len(content)}"
        raise DataError(
            f"{path} holds {found} entries, but its header says {count} in the shape {shape}: "
            "delete it and run again"
        )
    if count == 0:
        raise DataError(f"{path} is empty: delete it and run again")
    return np.frombuffer(content, np.uint8).reshape(shape)
