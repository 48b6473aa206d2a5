"""What is at an address: a path, a page on the web, or what webdataset can open."""

from __future__ import annotations

import http
import http.client
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlparse

from equilibria.run.data.errors import DataError, reading

__all__ = ["content", "is_path"]

ATTEMPTS = 4
"""How often a server is asked before it is given up."""

WAIT = 1.0
"""Seconds before it is asked again, doubled each time."""

TIMEOUT = 60.0
"""Seconds without an answer after which an attempt ends."""

MISSING = (
    "can only be opened by webdataset, which is not installed: pip install 'equilibria[stream]', "
    "or in a clone pip install '.[stream]'"
)

_BLOCK = 1 << 20


class _Interrupted(Exception):
    """The answer was cut short or did not come; another attempt may succeed."""


def is_path(url: str) -> bool:
    """Return whether an address is a path: it begins with no scheme such as ``https:``."""
    return re.match(r"\w[\w+.-]+:", url) is None  # one letter is a drive of Windows


def content(url: str) -> bytes:
    """Return all that is at an address.

    A broken transfer by http is resumed where it stopped, `ATTEMPTS` times in all.

    Args:
        url: Path; ``http:``, ``https:`` or ``file:``; or what webdataset's `gopen` opens, such as
            ``s3:``, ``gs:`` and ``pipe:``, which runs a command.

    Raises:
        DataError: If nothing is there, it cannot be read, or webdataset is needed and missing.
    """
    scheme = "" if is_path(url) else url.partition(":")[0].lower()
    if scheme in ("http", "https"):
        return _downloaded(url)
    if scheme in ("", "file"):
        path = url if not scheme else urllib.request.url2pathname(urlparse(url).path)
        with reading(url):
            return Path(path).read_bytes()
    try:
        from webdataset.gopen import gopen  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise DataError(f"{url} {MISSING}") from error
    try:
        with reading(url), gopen(url) as stream:
            return stream.read()
    except ValueError as error:  # an unknown scheme, or a command where these are not allowed
        raise DataError(f"{url} cannot be opened: {error}") from error


def _downloaded(url: str) -> bytes:
    got, problem = bytearray(), ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(WAIT * 2 ** (attempt - 1))
        try:
            _request(url, got)
            return bytes(got)
        except _Interrupted as error:
            problem = str(error)
    raise DataError(f"{url} could not be read in {ATTEMPTS} attempts: {problem}")


def _request(url: str, got: bytearray) -> None:
    """Ask once for what is lacking, and append it."""
    # Stored bytes must be the file's own: a server may otherwise compress what it sends.
    headers = {"Accept-Encoding": "identity", "User-Agent": "equilibria"}
    if got:
        headers["Range"] = f"bytes={len(got)}-"
    try:
        request = urllib.request.Request(url, headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            span = reply.headers.get("Content-Range") or ""
            if reply.status != http.HTTPStatus.PARTIAL_CONTENT:
                got.clear()
            elif not span.startswith(f"bytes {len(got)}-"):
                got.clear()
                raise _Interrupted(
                    f"it sent {span or 'other bytes'}, not those that were asked for"
                )
            length = reply.headers.get("Content-Length")
            if (packed := reply.headers.get("Content-Encoding", "identity")) != "identity":
                raise DataError(f"{url} sends its bytes packed ({packed}), not as they are")
            whole = None if length is None else len(got) + int(length)
            while block := reply.read(_BLOCK):
                got += block
    except urllib.error.HTTPError as error:
        error.close()
        answer = f"HTTP {error.code} {error.reason}"
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and got:
            got.clear()
            raise _Interrupted(answer) from error
        if error.code >= 500 or error.code in (408, 429):
            raise _Interrupted(answer) from error
        raise DataError(f"{url} cannot be read: {answer}") from error
    except ValueError as error:
        raise DataError(f"{url} cannot be read: {error}") from error
    except (http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise _Interrupted(f"the connection broke ({reason})") from error
    if whole is not None and len(got) != whole:
        raise _Interrupted(f"{len(got):,} of {whole:,} bytes arrived")
