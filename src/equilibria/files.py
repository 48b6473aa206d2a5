"""Atomic writes: a file is either the old one or the new one."""

import hashlib
import json
import math
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:6]
DAY = 24 * 3600.0

OURS = re.compile(r"^\..*\.([0-9a-f]{6})-(\d+)\.[0-9a-f]+\.tmp$")
"""Names of temporary files, with the host and the process that write them."""

NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Numbers that JSON lacks, as the strings that stand for them (as in protobuf's JSON)."""


def write(path: Path, save: Callable[[IO[bytes]], object], *, flush: bool = True) -> None:
    """Let `save` fill a temporary file next to `path`, flush it to disk and rename it to `path`.

    Args:
        path: the file to write or to replace.
        save: called with the temporary file, open for writing bytes.
        flush: False to leave it to the system when the file comes to the disk: a process that dies
            takes nothing from it, but after a power cut it may be empty or missing.

    Raises:
        OSError: the disk is full or the folder cannot be written; `path` is unchanged.
    """
    temporary = _temporary(path)
    try:
        opened = temporary.open("xb")
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"{reason}; nothing was written", str(path)) from error
    try:
        with opened as file:
            save(file)
            file.flush()
            if flush:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise OSError(error.errno, f"{reason}; nothing was changed", str(path)) from error
        raise
    if flush:
        sync_folder(path.parent)


def write_bytes(path: Path, content: bytes) -> None:
    """Write `content` to `path`, whole or not at all; see `write`."""
    write(path, lambda file: file.write(content))


def write_text(path: Path, content: str) -> None:
    """Write `content` to `path` as UTF-8, whole or not at all; see `write`."""
    write_bytes(path, content.encode())


def write_json(path: Path, content: Any) -> None:
    """Write `content` to `path` as indented JSON, whole or not at all; see `write`, `to_json`."""
    write_text(path, to_json(content, indent=2) + "\n")


def write_folder(path: Path, content: Mapping[str, bytes]) -> None:
    """Write a folder of files that does not exist yet, whole or not at all.

    Raises:
        OSError: the disk is full or the parent cannot be written; there is no such folder then.
    """
    with whole_folder(path) as folder:
        _fill(folder, content)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path`, which becomes `path` when the block ends without an error.

    Raises:
        OSError: the disk is full or the parent cannot be written; nothing is left then.
    """
    temporary = new_folder(path)
    with _rename_whole(temporary, path):
        yield temporary


def new_folder(path: Path) -> Path:
    """Create a temporary folder beside `path`, for `complete_folder`, and return it.

    Raises:
        OSError: the disk is full or the parent cannot be written.
    """
    temporary = _temporary(path)
    try:
        temporary.mkdir()
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"{reason}; nothing was changed", str(path)) from error
    return temporary


def complete_folder(temporary: Path, path: Path, content: Mapping[str, bytes]) -> None:
    """Write files into a temporary folder, flush it to disk and rename it to `path`.

    Raises:
        OSError: the disk is full or the parent cannot be written; there is no such folder then,
            and no temporary one.
    """
    with _rename_whole(temporary, path):
        _fill(temporary, content)


def _fill(folder: Path, content: Mapping[str, bytes]) -> None:
    for name, each in content.items():
        with (folder / name).open("wb") as file:
            file.write(each)
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def _rename_whole(temporary: Path, path: Path) -> Iterator[None]:
    try:
        yield
        sync_folder(temporary)
        temporary.rename(path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise OSError(error.errno, f"{reason}; nothing was changed", str(path)) from error
        raise
    sync_folder(path.parent)


def temporary(path: Path) -> bool:
    """Return whether a file or folder is a temporary one of `write` or `write_folder`."""
    return OURS.search(path.name) is not None


def clear(folder: Path, name: str = "") -> None:
    """Delete the temporary files and folders of processes that died while they wrote.

    Only those of the file `name`, where it is given: other threads may be writing beside it. Those
    of other machines, of which nothing is known, go when they are a day old.
    """
    for path in folder.glob(f".{name}*.tmp"):
        if (found := OURS.search(path.name)) is None:
            continue
        alive = _alive(int(found[2])) if found[1] == HOST else None
        with suppress(FileNotFoundError):  # its writer has just finished
            if alive or (alive is None and path.lstat().st_mtime > time.time() - DAY):
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def to_json(content: Any, indent: int | None = None) -> str:
    """Return `content` as JSON; numbers that are not finite become strings, see `NONFINITE`."""
    return json.dumps(_spell(content), indent=indent, allow_nan=False)


def from_json(text: str) -> Any:
    """Return what `to_json` wrote.

    Raises:
        ValueError: it is not JSON, or nested too deeply.
    """
    try:
        return _read(json.loads(text))
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _spell(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): _spell(each) for key, each in value.items()}
    return [_spell(each) for each in value] if isinstance(value, list | tuple) else value


def _read(value: Any) -> Any:
    if isinstance(value, str):
        return NONFINITE.get(value, value)
    if isinstance(value, dict):
        return {key: _read(each) for key, each in value.items()}
    return [_read(each) for each in value] if isinstance(value, list) else value


def _temporary(path: Path) -> Path:
    """Return a new name beside `path`, which says who writes there; see `clear`."""
    return path.with_name(f".{path.name}.{HOST}-{os.getpid()}.{secrets.token_hex(4)}.tmp")


def _alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # where signal 0 is Ctrl-C
    if pid == os.getpid():
        return False  # what this process writes now is written under the lock, or by this thread
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def sync_folder(folder: Path) -> None:
    """Flush the rename itself: on a crash a folder entry can be lost though its file is not."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows cannot open a folder, and needs no such flush
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
