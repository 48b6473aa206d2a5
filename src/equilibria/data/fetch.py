"""Download one file: whole, checked, or not at all."""

import errno
import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from equilibria.data.errors import DataError

_BLOCK = 1 << 18


class _Unreachable(Exception):
    """This address will not give the file, however often it is asked."""


class _Interrupted(Exception):
    """The transfer ended early; what came is kept, and another attempt goes on from there."""


def fetch(
    urls: str | Sequence[str],
    path: str | os.PathLike[str],
    *,
    checksum: str | None = None,
    attempts: int = 3,
    timeout: float = 30.0,
) -> Path:
    """Download a file, or leave it where it is if it is there and right.

    The bytes go to ``path`` + ``.part``, which takes the name of `path` only when it is complete
    and its checksum is right: what stands under `path` is never half a file. A transfer that
    breaks off goes on from where it stopped (HTTP Range), in this call or in a later one. Two
    processes that want the same file wait for each other.

    Args:
        urls: Address of the file, or several addresses of the same file, tried in order.
        path: Where it goes; folders are made as needed.
        checksum: ``"md5:..."``, ``"sha256:..."`` or another name of hashlib and hexadecimal
            digits. None: only the length is checked.
        attempts: How often an address that answers is asked before it is given up.
        timeout: Seconds without an answer after which an attempt ends.

    Returns:
        `path`.

    Raises:
        DataError: If no address has the file (404, say), the transfer stays incomplete, the
            checksum is wrong, or the file cannot be written (disk full, no permission). The
            message says which, and what to do.
    """
    path = Path(path)
    urls = [urls] if isinstance(urls, str) else list(urls)
    part = path.with_name(f"{path.name}.part")
    if path.exists():
        _check(path, checksum, f"{path} is damaged or another file (delete it and run again)")
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock")):
            if not path.exists():  # else another process was faster
                if checksum is None:
                    part.unlink(missing_ok=True)  # nothing would tell a part of another file
                _first_that_answers(urls, part, path, checksum, attempts, timeout)
                os.replace(part, path)
    except OSError as error:
        raise DataError(_cannot_write(path, error)) from error
    return path


def _first_that_answers(
    urls: Sequence[str],
    part: Path,
    path: Path,
    checksum: str | None,
    attempts: int,
    timeout: float,
) -> None:
    """Fill `part` from the first address that gives the whole and right file."""
    problems: list[str] = []
    for url in urls:
        try:
            _transfer(url, part, checksum, attempts, timeout)
            return
        except (_Unreachable, _Interrupted, DataError) as error:
            problems.append(f"{url}: {error}")
    raise DataError(
        f"could not download {path.name}. {'; '.join(problems)}. "
        f"Run again to go on, or fetch it by other means and put it at {path}"
    )


def _transfer(url: str, part: Path, checksum: str | None, attempts: int, timeout: float) -> None:
    for attempt in range(1, attempts + 1):
        resumed = part.exists() and part.stat().st_size > 0
        try:
            _request(url, part, timeout)
            _check(part, checksum, "what came is damaged or another file")
            return
        except _Interrupted:
            if attempt == attempts:
                raise
        except DataError:
            part.unlink()
            # The part may have been of another file; from the start it is what the server has.
            if not resumed or attempt == attempts:
                raise


def _request(url: str, part: Path, timeout: float) -> None:
    """Ask once for what `part` lacks and append it."""
    have = part.stat().st_size if part.exists() else 0
    # Stored bytes must be the file's own: a server may otherwise compress what it sends.
    headers = {"Accept-Encoding": "identity", "User-Agent": "equilibria"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        reply = urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=timeout
        )
    except urllib.error.HTTPError as error:
        with error:
            _refused(error, part, have)
        return
    except (http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise _Unreachable(f"no answer ({reason})") from error
    with reply:
        if have and reply.status == http.HTTPStatus.PARTIAL_CONTENT:
            start, total = _content_range(reply)
            if start != have:
                raise _Unreachable(
                    f"asked for the bytes from {have} on, it sent those from {start}"
                )
        else:
            have = 0
            length = reply.headers.get("Content-Length")
            total = int(length) if length else None
        with part.open("ab" if have else "wb") as file:
            _copy(reply, file)
            os.fsync(file.fileno())
    size = part.stat().st_size
    if total is not None and size != total:
        raise _Interrupted(f"truncated: {size} of {total} bytes came")


def _refused(error: urllib.error.HTTPError, part: Path, have: int) -> None:
    """Return if the refusal means that `part` is complete already; raise otherwise."""
    if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and have:
        total = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range") or "")
        if total and int(total[1]) == have:
            return
        part.unlink()
        raise _Interrupted(f"the part on disk ({have} bytes) is not of this file")
    answer = f"HTTP {error.code} {error.reason}"
    if error.code >= 500 or error.code in (408, 429):
        raise _Interrupted(answer)
    raise _Unreachable(answer)


def _content_range(reply: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Where the bytes of a partial reply begin, and how long the whole file is."""
    value = reply.headers.get("Content-Range") or ""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", value)
    if found is None:
        raise _Unreachable(f"its Content-Range is {value!r}, expected 'bytes FIRST-LAST/ALL'")
    return int(found[1]), None if found[2] == "*" else int(found[2])


def _copy(reply: http.client.HTTPResponse, file: BinaryIO) -> None:
    while True:
        try:
            block = reply.read(_BLOCK)
        # `write` stays outside: an error of the disk must not pass for one of the connection.
        except (http.client.HTTPException, OSError) as error:
            raise _Interrupted(f"the connection broke ({error})") from error
        if not block:
            return
        file.write(block)


def _check(path: Path, checksum: str | None, problem: str) -> None:
    """Raise DataError unless the content of `path` has this checksum; None always passes."""
    if checksum is None:
        return
    algorithm, _, expected = checksum.partition(":")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    if found.hexdigest() != expected.lower():
        raise DataError(f"{problem}: its {algorithm} is {found.hexdigest()}, expected {expected}")


def _cannot_write(path: Path, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return (
            f"the disk is full: {path.name} could not be written to {path.parent}. Free some "
            "space and run again, or choose another folder with --data-dir or EQUILIBRIA_DATA"
        )
    return (
        f"{path} cannot be written ({error.strerror or error}): choose another folder with "
        "--data-dir or EQUILIBRIA_DATA"
    )
