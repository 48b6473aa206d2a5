"""The idx format of the MNIST files: a header, then the entries as they lie in memory."""

import gzip
import hashlib
import struct
import zlib
from pathlib import Path

import numpy as np

from equilibria.data.errors import DataError

_UNSIGNED_BYTE = 0x08


def read(path: Path, md5: str | None = None) -> np.ndarray:
    """Read an idx file of unsigned bytes, gzipped or not.

    The header is two zero bytes, one byte for the type of an entry, one for the number of axes
    and a big-endian uint32 for the length of each axis.

    Args:
        path: The file; it is taken for gzipped where its name ends in ``.gz``.
        md5: Checksum of the *uncompressed* content, which does not depend on who zipped it.
            None: it is not checked.

    Returns:
        An array of uint8 in the shape that the header gives.

    Raises:
        DataError: If the file cannot be read, is damaged, or is another one.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is damaged ({error}): delete it and run again") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if md5 is not None and found != md5:
        raise DataError(
            f"{path} is damaged or another file: the md5 of its uncompressed content is {found}, "
            f"expected {md5}. If it is another data set of the same file names, name another "
            "folder with --data-dir; else delete it and run again"
        )
    return _parse(content, path)


def _parse(content: bytes, path: Path) -> np.ndarray:
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
            f"{path} holds {len(content) - start} entries, its header promises {count} "
            f"in the shape {shape}: delete it and run again"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
