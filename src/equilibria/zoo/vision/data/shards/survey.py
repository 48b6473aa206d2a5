"""Shards are read once, to write an index of all that must be known before they are streamed."""

from __future__ import annotations

import hashlib
import io
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from equilibria.run.data.storage import DataError, track
from equilibria.zoo.io import decode, headers
from equilibria.zoo.io.headers import Header
from equilibria.zoo.vision.data.shards import index
from equilibria.zoo.vision.data.shards.images import check_class, class_of, image_of, name_of
from equilibria.zoo.vision.data.shards.index import (
    KEY,
    About,
    Moments,
    Raw,
    Shard,
    parse_archive,
    write_index,
)

MEASURED = 2_000
"""Images of a split that the moments are taken of: spread evenly over all of its shards."""

THREADS = 4
"""Shards that are held in memory at once."""

MODES = {3: "RGB", 1: "L"}
"""Pillow's modes of images with 3 and with 1 channel."""


class Surveyed(NamedTuple):
    """What there is in the shards of a split."""

    shards: list[Shard]
    about: About
    counts: dict[str, int]
    """Samples of each class."""


class _Read(NamedTuple):
    """What was found in one shard."""

    shard: Shard
    classes: list[int | str]
    names: list[str]
    headers: list[Header]
    moments: dict[int, list[np.ndarray]]
    """For 3 and 1 channels, of each image that was decoded: the mean of its pixels and of their
    squares, (2, channels)."""


def survey(
    root: Path, splits: Mapping[str, Sequence[str]], labels: Sequence[str] | None = None
) -> dict[str, Surveyed]:
    """Read all shards of some splits, and write the index of each to ``root / f"{split}.json"``.

    Args:
        root: Where the indexes are written; folders below it are named relative to it.
        splits: The addresses of the shards of each, by its name.
        labels: Names of the classes, in the order of their numbers; None for the names that the
            samples give, sorted, or for the numbers themselves.

    Raises:
        DataError: If a shard cannot be read, or a sample is no image with its class.
    """
    read = {split: _read(urls, split) for split, urls in splits.items()}
    found = [each for parts in read.values() for each in parts]
    labels = _labels(found) if labels is None else tuple(labels)
    surveyed = {split: _summarise(parts, labels) for split, parts in read.items()}
    for split, each in surveyed.items():
        shards = [replace(shard, url=_relative(shard.url, root)) for shard in each.shards]
        write_index(root / f"{split}.json", shards, {KEY: each.about.json()})
    return surveyed


def _read(urls: Sequence[str], split: str) -> list[_Read]:
    measured = math.ceil(MEASURED / len(urls))
    found = decode.in_threads(lambda url: _one(url, measured), urls, THREADS, ahead=1)
    return list(track(found, len(urls), f"Reading the shards of {split}"))


def _one(url: str, measured: int) -> _Read:
    """Read one shard, and decode `measured` of its images, spread evenly over it."""
    content = index.read_address(url)
    samples = parse_archive(content, url)
    if not samples:
        raise DataError(f"{url} has no samples: leave it out")
    step = max(1, len(samples) // measured)
    moments = [_moments(sample, url) for sample in samples[::step][:measured]]
    return _Read(
        shard=Shard(url, len(samples), f"sha256:{hashlib.sha256(content).hexdigest()}"),
        classes=[class_of(sample, url) for sample in samples],
        names=[name_of(sample, url) for sample in samples],
        headers=[_header(sample, url) for sample in samples],
        moments={channels: [each[channels] for each in moments] for channels in MODES},
    )


def _header(sample: Raw, url: str) -> Header:
    name = name_of(sample, url)
    header = headers.read_header(decode.identify_image(io.BytesIO(image_of(sample, url)), name))
    headers.refuse_deep(header, name)
    return header


def _moments(sample: Raw, url: str) -> dict[int, np.ndarray]:
    found: dict[int, np.ndarray] = {}
    for channels, mode in MODES.items():
        content, name = image_of(sample, url), name_of(sample, url)
        pixels = decode.pixels(content, name, mode, None).reshape(channels, -1) / 255.0
        found[channels] = np.stack([pixels.mean(1), np.square(pixels).mean(1)])
    return found


def _labels(found: Sequence[_Read]) -> tuple[str, ...]:
    """The names of all classes: those that samples have, or the numbers up to the largest."""
    names: dict[str, str] = {}
    largest, example = -1, ""
    for each in found:
        for name, given in zip(each.names, each.classes, strict=True):
            if isinstance(given, str):
                names.setdefault(given, name)
            elif given > largest:
                largest, example = given, name
    if names and example:
        name, where = next(iter(names.items()))
        raise DataError(
            f"{example} has the number of a class, {largest}, and {where} a name, {name}: name the "
            "classes in the order of their numbers with --classes FILE, one a line"
        )
    return tuple(sorted(names)) or tuple(map(str, range(largest + 1)))


def _summarise(parts: Sequence[_Read], labels: tuple[str, ...]) -> Surveyed:
    places = {label: place for place, label in enumerate(labels)}
    names = [name for each in parts for name in each.names]
    scanned = [header for each in parts for header in each.headers]
    given = [found for each in parts for found in each.classes]
    counts = Counter(
        check_class(found, name, labels, places) for found, name in zip(given, names, strict=True)
    )
    sizes = {header[:2] for header in scanned}
    smallest = min(range(len(names)), key=lambda k: min(scanned[k][:2]))
    height, width, _ = scanned[smallest]
    moments: dict[int, Moments] = {}
    for channels in MODES:
        mean, squares = np.mean([row for each in parts for row in each.moments[channels]], axis=0)
        deviation = np.sqrt(np.maximum(squares - np.square(mean), 0.0))
        moments[channels] = Moments(tuple(mean.tolist()), tuple(deviation.tolist()))
    return Surveyed(
        shards=[each.shard for each in parts],
        about=About(
            labels=labels,
            size=sizes.pop() if len(sizes) == 1 else None,
            shorter=statistics.median(min(header[:2]) for header in scanned),
            smallest=f"{names[smallest]} ({height} x {width} pixels)",
            modes=dict(Counter(header.mode for header in scanned)),
            moments=moments,
        ),
        counts={label: counts[place] for place, label in enumerate(labels)},
    )


def _relative(url: str, root: Path) -> str:
    """A path below `root`, from there, and another one as a whole; an address as it is."""
    if not index.is_path(url):
        return url
    path, root = Path(url).absolute(), root.absolute()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)
