"""Regular files only: opening a pipe waits for ever, and reading a device need never end."""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}


def open_file(path: Path) -> BufferedReader:
    """Open a regular file, or a link to one, for reading bytes.

    Raises:
        OSError: If there is none, it cannot be read, or it is a folder, a pipe, a socket or a
            device, none of which is opened.
    """
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise OSError(errno.EINVAL, f"it is {kind}, not a regular file", str(path))
    return path.open("rb")


def read_bytes(path: Path, most: int) -> bytes:
    """Return the content of a regular file.

    Raises:
        OSError: As `open_file`; or it has more than `most` bytes, of which none is kept.
    """
    with open_file(path) as file:
        content = file.read(most + 1) if os.fstat(file.fileno()).st_size <= most else None
    if content is None or len(content) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
    return content
