"""Samples in shards: tar archives that are read one after the other, from disk or over a network.

A shard is a tar archive in webdataset's layout: the files of a sample follow each other and share
their name up to the first dot, as in ``000017.jpg``, ``000017.cls``. Where the shards are and how
many samples each has is in an index, JSON as `widsindex` writes it:
``{"shardlist": [{"url": "train-000.tar", "nsamples": 1000}, ...]}``.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equilibria.data.errors import DataError, reading

__all__ = ["Shard", "count", "read_index", "samples", "write_index"]

MISSING = (
    "streamed shards need webdataset, which is not installed: pip install 'equilibria[stream]', or "
    "in a clone pip install '.[stream]'"
)


@dataclass(frozen=True)
class Shard:
    """One archive.

    Attributes:
        url: Path, or address that webdataset opens (``http:``, ``s3:`` through ``pipe:``, ...).
        samples: How many there are in it.
    """

    url: str
    samples: int


def samples(url: str) -> list[dict[str, bytes]]:
    """The samples of a shard, in its order: for each extension the content of that file.

    The key ``__key__`` holds the name that the files of a sample share, in UTF-8.

    Raises:
        DataError: If the shard is missing or damaged, or webdataset is not installed.
    """
    try:
        from webdataset.tariterators import tarfile_samples  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise DataError(MISSING) from error
    with reading(url, tarfile.TarError, EOFError):
        found: Iterable[Any] = tarfile_samples(iter([{"url": url}]))
        return [_plain(sample) for sample in found]


def _plain(sample: dict[str, Any]) -> dict[str, bytes]:
    kept = {key: value for key, value in sample.items() if not key.startswith("__")}
    return {"__key__": str(sample["__key__"]).encode(), **kept}


def count(urls: Sequence[str]) -> list[Shard]:
    """Read shards once, and count the samples in each.

    Raises:
        DataError: If one is missing, damaged or empty, or webdataset is not installed.
    """
    return [_filled(Shard(url, len(samples(url))), url) for url in urls]


def write_index(path: str | Path, shards: Sequence[Shard]) -> None:
    """Write the index of some shards."""
    listed = [{"url": shard.url, "nsamples": shard.samples} for shard in shards]
    tree = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": listed}
    Path(path).write_text(json.dumps(tree, indent=2), "utf-8")


def read_index(path: str | Path) -> list[Shard]:
    """Read the index of some shards, whose relative paths begin at its folder.

    Raises:
        DataError: If it cannot be read, or names no shard with its number of samples.
    """
    path = Path(path)
    try:
        with reading(path):
            listed = json.loads(path.read_text("utf-8"))["shardlist"]
        found = [Shard(_placed(each["url"], path), int(each["nsamples"])) for each in listed]
    except (ValueError, TypeError, LookupError) as error:
        raise DataError(
            f'{path} is no index of shards; expected {{"shardlist": [{{"url": "train-000.tar", '
            '"nsamples": 1000}}, ...]}}'
        ) from error
    if not found:
        raise DataError(f"{path} lists no shards")
    return [_filled(shard, str(path)) for shard in found]


def _placed(url: str, index: Path) -> str:
    """A relative path, from the folder of the index; an address as it is."""
    return url if re.match(r"\w+:", url) else str(index.parent / url)


def _filled(shard: Shard, where: str) -> Shard:
    if shard.samples < 1:
        raise DataError(f"{where}: the shard {shard.url} has {shard.samples} samples")
    return shard
