"""The idx format of the MNIST files: a header, then the entries as they lie in memory."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from equilibria.data.errors import DataError, reading

_UNSIGNED_BYTE = 0x08


def read(path: Path) -> np.ndarray:
    """Read an idx file of unsigned bytes, gzipped where its name ends in ``.gz``.

    The header is two zero bytes, one byte for the type of an entry, one for the number of axes
    and a big-endian uint32 for the length of each axis.

    Returns:
        An array of uint8 in the shape that the header gives.

    Raises:
        DataError: If the file cannot be read, is damaged, or is another one.
    """
    with reading(path, gzip.BadGzipFile, EOFError, zlib.error):
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(content) < 4 or content[:3] != bytes((0, 0, _UNSIGNED_BYTE)):
        raise DataError(
            f"{path} is not an idx file of unsigned bytes: it begins with "
            f"{content[:4].hex(' ') or 'nothing'}, expected 00 00 08 and the number of axes"
        )
    axes = content[3]
    start = 4 + 4 * axes
    if len(content) < start:
        raise DataError(f"{path} is truncated: its header ends after {len(content)} bytes")
    shape = struct.unpack(f">{axes}I", content[4:start])
    count = int(np.prod(shape, dtype=np.int64))
    if len(content) - start != count:
        raise DataError(
            f"{path} holds {len(content) - start} entries, but its header says {count} "
            f"in the shape {shape}: delete it and run again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
