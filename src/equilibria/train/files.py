"""Atomic writes: a file is either the old one or the new one."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def write(path: Path, save: Callable[[IO[bytes]], object]) -> None:
    """Let `save` fill a temporary file next to `path`, flush it to disk and rename it to `path`.

    Args:
        path: the file to write or to replace.
        save: called with the temporary file, open for writing bytes.

    Raises:
        OSError: the disk is full or the folder cannot be written; `path` is unchanged.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"{reason}; nothing was written", str(path)) from error
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            save(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())  # mkstemp makes files that only their owner may read
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise OSError(error.errno, f"{reason}; nothing was changed", str(path)) from error
        raise
    _sync_folder(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`, whole or not at all; see `write`."""
    write(path, lambda file: file.write(content))


def write_text(path: Path, content: str) -> None:
    """Write `content` to `path` as UTF-8, whole or not at all; see `write`."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """Write `content` to `path` as indented JSON, whole or not at all; see `write`."""
    write_text(path, json.dumps(content, indent=2) + "\n")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(folder: Path) -> None:
    """Flush the rename itself: on a crash a folder entry can be lost though its file is not."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows cannot open a folder, and needs no such flush
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
