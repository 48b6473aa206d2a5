"""The samples of one shard."""

from __future__ import annotations

import io
import re

from equilibria.run.data.errors import DataError, reading
from equilibria.zoo.io.archive import DAMAGED, entries
from equilibria.zoo.vision.data.shards import address

__all__ = ["Raw", "parsed", "samples"]

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
    return parsed(address.content(url), url)


def parsed(content: bytes, url: str) -> list[Raw]:
    """The samples of a shard, given all that is in its archive.

    Raises:
        DataError: If it is damaged, or has two files of one name; the message names `url`.
    """
    found: list[Raw] = []
    key, total = None, 0
    with reading(url, *DAMAGED):
        for entry, file in entries(io.BytesIO(content)):
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
