"""One writer at a time: the lock on a run folder."""

from __future__ import annotations

import errno
import json
import os
import platform
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

NAME = ".lock"
"""The file that is locked. It stays; what counts is whether a process holds it."""

_held: dict[Path, int] = {}
"""Locks of this process, each with the process that took it: a fork inherits this, not the lock."""

_guard = threading.Lock()


class Locked(RuntimeError):
    """Another process or thread writes to the folder; the message says which."""


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder for a block.

    It is a POSIX record lock: the kernel releases it when the process ends, however it ends, and a
    forked child does not inherit it. Closing any descriptor of the file would release it, so this
    process never opens it a second time.

    Args:
        folder: an existing folder.

    Raises:
        Locked: another process, or another thread of this one, holds it.
        OSError: the file cannot be written.
    """
    path = folder.resolve() / NAME
    with _guard:
        if _held.get(path) == os.getpid():
            raise Locked(f"{folder} is being written by another thread of this process")
        _held[path] = os.getpid()
    try:
        with ExitStack() as stack:
            if fcntl is None:
                from filelock import FileLock, Timeout

                try:
                    stack.enter_context(FileLock(path, timeout=0))
                except Timeout:
                    raise Locked(f"{folder} is being written by another process") from None
            else:
                # Not through a link: what is written here would cut another file.
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
                stack.callback(os.close, descriptor)
                try:
                    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except (BlockingIOError, PermissionError):
                    raise Locked(f"{folder} is being written by {_holder(descriptor)}") from None
                except OSError as error:
                    if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                        raise
                    warnings.warn(
                        f"{folder} is on a file system without locks: take care that no other "
                        "process writes there",
                        stacklevel=3,
                    )
                if not _same(descriptor, path):  # deleted with its folder, since it was opened
                    raise Locked(f"{folder} has just been written by another process: try again")
                _sign(descriptor)
                stack.callback(os.ftruncate, descriptor, 0)
            yield
    finally:
        with _guard:
            _held.pop(path, None)


def _same(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _sign(descriptor: int) -> None:
    """Write who holds the lock into it, for the message to others."""
    about = {
        "pid": os.getpid(),
        "host": platform.node(),
        "since": datetime.now().isoformat(" ", "seconds"),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])[:200],
    }
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(about).encode(), 0)


def _holder(descriptor: int) -> str:
    """Return who holds the lock, in words."""
    try:
        about: dict[str, Any] = json.loads(os.pread(descriptor, 4096, 0))
        return "process {pid} on {host}, since {since} ({command})".format(**about)
    except (ValueError, TypeError, KeyError):
        return "another process"
