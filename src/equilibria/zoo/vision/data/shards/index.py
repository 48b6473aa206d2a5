"""The index of some shards: where each is, and how many samples it has."""

from __future__ import annotations

import http
import http.client
import io
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from equilibria import files
from equilibria.run.data.storage import DataError, read_errors, require, write_errors
from equilibria.run.tasks.normalization import PixelStatistics
from equilibria.zoo.io.archive import DAMAGED, iterate_entries

# --- address --------------------------------------------------------------------------------------

# What is at an address: a path, a page on the web, or what webdataset can open.


ATTEMPTS = 4
"""How often a server is asked before it is given up."""

WAIT = 1.0
"""Seconds before it is asked again, doubled each time."""

TIMEOUT = 60.0
"""Seconds without an answer after which an attempt ends."""

_BLOCK = 1 << 20


class _BrokenTransfer(Exception):
    """The answer was cut short or did not come; another attempt may succeed."""


def is_path(url: str) -> bool:
    """Return whether an address is a path: it begins with no scheme such as ``https:``."""
    return re.match(r"\w[\w+.-]+:", url) is None  # one letter is a drive of Windows


def read_address(url: str) -> bytes:
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
        return _download(url)
    if scheme in ("", "file"):
        path = url if not scheme else urllib.request.url2pathname(urlparse(url).path)
        with read_errors(url):
            return Path(path).read_bytes()
    gopen = require("webdataset.gopen", "webdataset", "stream", url).gopen
    try:
        with read_errors(url), gopen(url) as stream:
            return stream.read()
    except ValueError as error:  # an unknown scheme, or a command where these are not allowed
        raise DataError(f"{url} cannot be opened: {error}") from error


def _download(url: str) -> bytes:
    got, problem = bytearray(), ""
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(WAIT * 2 ** (attempt - 1))
        try:
            _request(url, got)
            return bytes(got)
        except _BrokenTransfer as error:
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
                raise _BrokenTransfer(
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
            raise _BrokenTransfer(answer) from error
        if error.code >= 500 or error.code in (408, 429):
            raise _BrokenTransfer(answer) from error
        raise DataError(f"{url} cannot be read: {answer}") from error
    except ValueError as error:
        raise DataError(f"{url} cannot be read: {error}") from error
    except (http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise _BrokenTransfer(f"the connection broke ({reason})") from error
    if whole is not None and len(got) != whole:
        raise _BrokenTransfer(f"{len(got):,} of {whole:,} bytes arrived")


# --- archive --------------------------------------------------------------------------------------

# The samples of one shard.


Raw = dict[str, bytes]
"""The files of a sample by their extension, in small letters; ``__key__`` is their common name."""

LARGEST = 8 << 30
"""Bytes to which the files of a shard may add up: it is held in memory."""


def samples(url: str) -> list[Raw]:
    """The samples of a shard, in its order: for each extension the content of that file.

    The key ``__key__`` holds the name that the files of a sample share, in UTF-8.

    Raises:
        DataError: If the shard is missing, out of reach or damaged, or has two files of one name.
    """
    return parse_archive(read_address(url), url)


def parse_archive(content: bytes, url: str) -> list[Raw]:
    """The samples of a shard, given all that is in its archive.

    Raises:
        DataError: If it is damaged, or has two files of one name; the message names `url`.
    """
    found: list[Raw] = []
    key, total = None, 0
    with read_errors(url, *DAMAGED):
        for entry, file in iterate_entries(io.BytesIO(content)):
            named = re.fullmatch(r"((?:.*/)?[^./][^./]*)\.([^/]*)", entry.name.removeprefix("./"))
            if named is None or re.match(r"__[^/]*__($|[./])", entry.name):
                continue
            total += entry.size
            if total > LARGEST:
                raise DataError(
                    f"{url} unpacks to more than {LARGEST:,} bytes, and shards are held in memory: "
                    "make smaller ones"
                )
            if named[1] != key:
                key = named[1]
                found.append({"__key__": key.encode("utf-8", "surrogateescape")})
            extension = named[2].lower()
            if extension in found[-1]:
                raise DataError(f"{url} has two files {key}.{extension}: remove one of them")
            found[-1][extension] = file.read()
    return found


# --- about ----------------------------------------------------------------------------------------

# What an index tells of its images besides where they are: classes, sizes, colours, statistics.


KEY = "images"
"""Where it stands in the index."""


@dataclass(frozen=True, kw_only=True)
class About:
    """What is known of the images of some shards without reading them.

    Attributes:
        labels: Names of the classes, in the order of their numbers.
        size: Height and width that all images have; None where they differ.
        shorter: Median of the shorter sides, in pixels.
        smallest: Name of the smallest image, with its height and width.
        modes: How many images have which of Pillow's modes.
        moments: Mean and deviation of each channel, of pixels in [0, 1], where an image counts as
            one, over some of the images at their own sizes: as RGB under 3, as grey under 1.
    """

    labels: tuple[str, ...]
    size: tuple[int, int] | None
    shorter: float
    smallest: str
    modes: dict[str, int]
    moments: dict[int, PixelStatistics]

    def json(self) -> dict[str, Any]:
        """What the index holds."""
        return asdict(self)

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> About:
        """Read what `json` gives.

        Raises:
            ValueError, TypeError, LookupError, AttributeError: If it is something else.
        """
        labels = tuple(content["labels"])
        if not labels or not all(isinstance(label, str) for label in labels):
            raise ValueError("labels are not names of classes")
        size = content["size"]
        moments = {
            int(channels): PixelStatistics(
                tuple(map(float, each["mean"])), tuple(map(float, each["deviation"]))
            )
            for channels, each in content["moments"].items()
        }
        if any(len(each.mean) != n or len(each.deviation) != n for n, each in moments.items()):
            raise ValueError("a channel lacks its mean or its deviation")
        return cls(
            labels=labels,
            size=None if size is None else (int(size[0]), int(size[1])),
            shorter=float(content["shorter"]),
            smallest=str(content["smallest"]),
            modes={str(mode): int(count) for mode, count in content["modes"].items()},
            moments={channels: moments[channels] for channels in (3, 1)},
        )


# --- index ----------------------------------------------------------------------------------------


EXPECTED = '{"shardlist": [{"url": "train-000.tar", "nsamples": 1000}, ...]}'


@dataclass(frozen=True)
class Shard:
    """One archive.

    Attributes:
        url: Path, or address (``https:``; with webdataset also ``s3:``, ``pipe:`` and others).
        samples: How many there are in it.
        checksum: ``sha256:...`` over its bytes; "" where the index does not say.
    """

    url: str
    samples: int
    checksum: str = ""


def count(urls: Sequence[str]) -> list[Shard]:
    """Read shards once, and count the samples in each.

    Raises:
        DataError: If one is missing, damaged or empty.
    """
    return [_check_filled(Shard(url, len(samples(url))), url) for url in urls]


def write_index(
    path: str | Path, shards: Sequence[Shard], more: Mapping[str, Any] | None = None
) -> None:
    """Write the index of some shards.

    Args:
        path: Its file.
        shards: What it lists.
        more: Further keys of it, as JSON has them.
    """
    listed = [
        {"url": shard.url, "nsamples": shard.samples}
        | ({"checksum": shard.checksum} if shard.checksum else {})
        for shard in shards
    ]
    tree = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": listed}
    text = json.dumps({**tree, **(more or {})}, indent=2, ensure_ascii=False) + "\n"
    with write_errors(Path(path), "FOLDER"):
        files.write_text(Path(path), text)


def read_index(path: str | Path) -> list[Shard]:
    """Read the index of some shards, whose relative paths begin at its folder.

    Raises:
        DataError: If it cannot be read, or names no shard with its number of samples.
    """
    path = Path(path)
    listed = read_tree(path)["shardlist"]
    try:
        found = [
            Shard(_resolve(each["url"], path), int(each["nsamples"]), str(each.get("checksum", "")))
            for each in listed
        ]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f"{path} is no index of shards; expected {EXPECTED}") from error
    if not found:
        raise DataError(f"{path} lists no shards")
    return [_check_filled(shard, str(path)) for shard in found]


def read_tree(path: Path) -> dict[str, Any]:
    """Read all that is in an index.

    Raises:
        DataError: If it cannot be read, or is none.
    """
    try:
        with read_errors(path):
            tree = json.loads(path.read_text("utf-8"))
        if not isinstance(tree["shardlist"], list):
            raise TypeError("shardlist is no list")
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise DataError(f"{path} is no index of shards; expected {EXPECTED}") from error
    return tree


def _resolve(url: str, index: Path) -> str:
    """A relative path, from the folder of the index; an address as it is."""
    return str(index.parent / url) if is_path(url) else url


def _check_filled(shard: Shard, where: str) -> Shard:
    if shard.samples < 1:
        raise DataError(f"{where}: the shard {shard.url} has {shard.samples} samples")
    return shard
