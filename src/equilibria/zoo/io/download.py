"""Checksums of files: computing and checking them."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import http.client
import lzma
import os
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from filelock import FileLock

from equilibria.run.data.storage import DataError, open_file, read_errors, track, write_errors
from equilibria.zoo.io import archive
from equilibria.zoo.io.archive import LARGEST

_BLOCK = 1 << 20


def digest(
    path: Path, algorithm: str = "sha256", *, unpacked: bool = False, largest: int = LARGEST
) -> str:
    """``sha256:...`` over the bytes of a file, or another algorithm of hashlib.

    With `unpacked`, over the content of a gzipped file, which is never in memory as a whole and of
    which at most `largest` bytes are unpacked.

    Raises:
        DataError: If the file cannot be read, is not gzipped, or unpacks to more bytes.
    """
    total = hashlib.new(algorithm, usedforsecurity=False)
    with (
        read_errors(path, gzip.BadGzipFile, EOFError, zlib.error),
        open_file(path) as stored,
        gzip.open(stored) if unpacked else stored as file,
    ):
        limited = archive.Limited(file, path, largest) if unpacked else file
        while block := limited.read(_BLOCK):
            total.update(block)
    return f"{algorithm}:{total.hexdigest()}"


def fingerprint(root: Path, names: Iterable[str]) -> str:
    """``sha256:...`` over names, lengths and times of change of many files below a folder.

    Raises:
        DataError: If a file is not there.
    """
    with read_errors(root):
        stats = [(name, (root / name).stat()) for name in names]
    listed = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
    return f"sha256:{hashlib.sha256(repr(listed).encode()).hexdigest()}"


def mismatch(path: Path, checksum: str, *, unpacked: bool = False, largest: int = LARGEST) -> str:
    """How a file, or its content, differs from ``ALGORITHM:DIGITS``; empty if it does not."""
    algorithm, _, expected = checksum.partition(":")
    found = digest(path, algorithm, unpacked=unpacked, largest=largest).partition(":")[2]
    if found == expected.lower():
        return ""
    return f"its {algorithm}{' when unpacked' * unpacked} is {found}, expected {expected}"


def check_checksum(
    path: Path, checksum: str, *, unpacked: bool = False, largest: int = LARGEST
) -> None:
    """Raise DataError unless a file, or its content, has this ``ALGORITHM:DIGITS``."""
    if problem := mismatch(path, checksum, unpacked=unpacked, largest=largest):
        raise DataError(
            f"{path} is damaged or the wrong file: {problem}. If it belongs to another data set "
            "with the same file names, name another folder with --data-dir; otherwise delete it "
            "and run again"
        )


# --- fetch ----------------------------------------------------------------------------------------

# Download one file: whole, checked, or not at all.


class _Unreachable(Exception):
    """This address will not serve the file, however often it is retried."""


class _Interrupted(Exception):
    """The transfer ended early; what arrived is kept, and another attempt resumes it."""


def fetch(
    urls: str | Sequence[str],
    path: str | os.PathLike[str],
    *,
    checksum: str | None = None,
    attempts: int = 3,
    timeout: float = 30.0,
) -> Path:
    """Download a file, unless it is already there and correct.

    The bytes go to ``path`` + ``.part``, which is renamed to `path` only when it is complete and
    its checksum is correct: `path` is never a partial file. An interrupted transfer resumes from
    where it stopped (HTTP Range), in this call or in a later one. Two processes that want the same
    file wait for each other.

    Args:
        urls: Address of the file, or several addresses of the same file, tried in order.
        path: Where it goes; folders are created as needed.
        checksum: ``"md5:..."``, ``"sha256:..."`` or another name of hashlib and hexadecimal
            digits. None: the file is judged by its type, length and content. A page in place of
            another file is refused; so is a file whose end cannot be told: the server gives no
            length, and it is no archive, which tells by itself.
        attempts: How often an address that answers is tried before giving up.
        timeout: Seconds without an answer after which an attempt ends.

    Returns:
        `path`.

    Raises:
        DataError: If no address has the file (404, say), the transfer stays incomplete, the
            checksum is wrong, or the file cannot be written (disk full, no permission). The
            message says which, and what to do.
    """
    path = Path(path)
    if path.exists():
        if checksum is not None:
            check_checksum(path, checksum)
        return path
    with write_errors(path, "--data-dir or XDG_CACHE_HOME"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            if not path.exists():  # else another process was faster
                part = path.with_name(f"{path.name}.part")
                if checksum is None:
                    part.unlink(missing_ok=True)  # a part of another file could not be detected
                problems: list[str] = []
                for url in [urls] if isinstance(urls, str) else urls:
                    try:
                        _transfer(url, part, checksum, attempts, timeout)
                    except (_Unreachable, _Interrupted, DataError) as error:
                        problems.append(f"{url}: {error}")
                    else:
                        os.replace(part, path)
                        return path
                raise DataError(
                    f"could not download {path.name}. {'; '.join(problems)}. Run again to resume, "
                    f"or fetch it by other means and save it as {path}"
                )
    return path


def _transfer(url: str, part: Path, checksum: str | None, attempts: int, timeout: float) -> None:
    """Fill `part` with the whole and right file, from one address."""
    for attempt in range(1, attempts + 1):
        resumed = part.exists() and part.stat().st_size > 0
        try:
            if not (resumed and checksum and not mismatch(part, checksum)):
                ends = _request(url, part, timeout)
                if checksum is None:
                    _judge(part, ends)
            if checksum is not None and (problem := mismatch(part, checksum)):
                raise DataError(f"the download is damaged or the wrong file: {problem}")
            return
        except _Interrupted:
            if attempt == attempts:
                raise
        except DataError:
            part.unlink()
            # The part may have been of another file; from the start it is what the server has.
            if not resumed or attempt == attempts:
                raise


def _judge(part: Path, ends: bool) -> None:
    """Raise DataError if a download is not what its name says, or has no certain end.

    Args:
        part: The file, whose name but for its last ending is that of the download.
        ends: Whether the server said where it ends.
    """
    name = Path(part.stem)
    with part.open("rb") as file:
        head = file.read(512).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not part.stat().st_size:
        raise DataError("the server sent an empty file")
    if head.startswith((b"<!doctype html", b"<html")) and name.suffix not in (".html", ".htm"):
        raise DataError("the server sent a page (HTML), not the file")
    check = _CHECKS.get(name.suffix)
    if check is not None:
        try:
            check(part)
        except (*archive.DAMAGED, *archive.DAMAGED_ZIP, OSError) as error:
            raise DataError(f"the download is no {name.suffix} file, or is cut: {error}") from None
    elif not ends:
        raise DataError("the server gave no length, so whether the file arrived whole is unknown")


def _read_through(path: Path, unpack: Callable[..., Any]) -> None:
    with unpack(path, "rb") as file:
        while file.read(_BLOCK):
            pass


def _check_zip(path: Path) -> None:
    with zipfile.ZipFile(path) as packed:
        if damaged := packed.testzip():
            raise zipfile.BadZipFile(f"its member {damaged} is damaged")


def _check_tar(path: Path) -> None:
    with path.open("rb") as file:
        for _ in archive.iterate_entries(file):
            pass


_CHECKS: dict[str, Callable[[Path], None]] = {
    ".zip": _check_zip,
    ".npz": _check_zip,
    ".tar": _check_tar,
    ".gz": partial(_read_through, unpack=gzip.open),
    ".tgz": partial(_read_through, unpack=gzip.open),
    ".bz2": partial(_read_through, unpack=bz2.open),
    ".xz": partial(_read_through, unpack=lzma.open),
}
"""What raises one of `archive.DAMAGED` or `DAMAGED_ZIP` if a file of that ending is not whole."""


def _request(url: str, part: Path, timeout: float) -> bool:
    """Ask once for what `part` lacks, append it, and return whether the server said the length."""
    have = part.stat().st_size if part.exists() else 0
    # Stored bytes must be the file's own: a server may otherwise compress what it sends.
    headers = {"Accept-Encoding": "identity", "User-Agent": "equilibria"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        reply = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        answer = f"HTTP {error.code} {error.reason}"
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
            part.unlink()
            raise _Interrupted(f"the part on disk ({have} bytes) is from another file") from error
        if error.code >= 500 or error.code in (408, 429):
            raise _Interrupted(answer) from error
        raise _Unreachable(answer) from error
    except (http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise _Unreachable(f"no answer ({reason})") from error
    with reply:
        if reply.status == http.HTTPStatus.NO_CONTENT:
            raise _Unreachable("HTTP 204 No Content")
        if (packed := reply.headers.get("Content-Encoding", "identity")) != "identity":
            raise _Unreachable(f"its bytes are packed ({packed}), though they were asked for as is")
        if reply.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0
        elif not (sent := reply.headers.get("Content-Range") or "").startswith(f"bytes {have}-"):
            raise _Unreachable(f"asked for the bytes from {have} on, its Content-Range is {sent!r}")
        length = reply.headers.get("Content-Length")
        if length is not None and not length.strip().isdecimal():
            raise _Unreachable(f"its Content-Length is {length!r}")
        left = None if length is None else -(-int(length) // _BLOCK)
        with part.open("ab" if have else "wb") as file:
            for block in track(_blocks(reply), left, f"Downloading {part.stem} (MiB)"):
                file.write(block)  # here: an error of the disk must not pass for a broken transfer
            os.fsync(file.fileno())
    size = part.stat().st_size
    if length is not None and size != have + int(length):
        raise _Interrupted(f"truncated: {size} of {have + int(length)} bytes arrived")
    return length is not None or reply.chunked


def _blocks(reply: http.client.HTTPResponse) -> Iterator[bytes]:
    try:
        while block := reply.read(_BLOCK):
            yield block
    except (http.client.HTTPException, OSError) as error:
        raise _Interrupted(f"the connection broke ({error})") from error
