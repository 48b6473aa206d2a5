"""The index of some shards: where each is, and how many samples it has."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equilibria import files
from equilibria.run.data.errors import DataError, reading, writing
from equilibria.zoo.vision.data.shards.address import is_path
from equilibria.zoo.vision.data.shards.archive import samples

__all__ = ["Shard", "count", "read_index", "read_tree", "write_index"]

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
    return [_filled(Shard(url, len(samples(url))), url) for url in urls]


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
    with writing(Path(path), "FOLDER"):
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
            Shard(_placed(each["url"], path), int(each["nsamples"]), str(each.get("checksum", "")))
            for each in listed
        ]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f"{path} is no index of shards; expected {EXPECTED}") from error
    if not found:
        raise DataError(f"{path} lists no shards")
    return [_filled(shard, str(path)) for shard in found]


def read_tree(path: Path) -> dict[str, Any]:
    """Read all that is in an index.

    Raises:
        DataError: If it cannot be read, or is none.
    """
    try:
        with reading(path):
            tree = json.loads(path.read_text("utf-8"))
        if not isinstance(tree["shardlist"], list):
            raise TypeError("shardlist is no list")
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise DataError(f"{path} is no index of shards; expected {EXPECTED}") from error
    return tree


def _placed(url: str, index: Path) -> str:
    """A relative path, from the folder of the index; an address as it is."""
    return str(index.parent / url) if is_path(url) else url


def _filled(shard: Shard, where: str) -> Shard:
    if shard.samples < 1:
        raise DataError(f"{where}: the shard {shard.url} has {shard.samples} samples")
    return shard
