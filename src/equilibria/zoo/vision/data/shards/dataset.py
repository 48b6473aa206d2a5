"""A folder of indexes: what they tell of images in shards, and the survey that writes them."""

from __future__ import annotations

import hashlib
import io
import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from equilibria.run.data.storage import DataError, track
from equilibria.run.tasks.normalization import PixelStatistics
from equilibria.zoo.io import decode, headers
from equilibria.zoo.io.headers import CHANNELS, Header
from equilibria.zoo.io.image_files import ImageView
from equilibria.zoo.vision.data.shards import index
from equilibria.zoo.vision.data.shards.images import (
    ShardImages,
    check_class,
    class_of,
    image_of,
    name_of,
)
from equilibria.zoo.vision.data.shards.index import (
    KEY,
    About,
    Raw,
    Shard,
    parse_archive,
    read_index,
    read_tree,
    write_index,
)

GRAY = ("1", "L", "LA", "La")
"""Pillow's modes of grey images."""

SPLITS = ("train", "valid", "test")
"""Parts of a data set, each of which has the index NAME.json."""


@dataclass(frozen=True, kw_only=True)
class ImageShards:
    """Images in shards.

    Attributes:
        title: What tables call it: the name of the folder.
        splits: The images of each: "train", "test", and "valid" if there is one.
        labels: Names of the classes, in the order of their numbers.
        shape: Channels, height and width of an image.
        smallest: Name of the smallest training image, with its height and width in pixels.
        shorter: Median of the shorter sides of training images, in pixels.
        grey: Whether all images are grey.
        moments: Of training images, at their own sizes.
        checksum: ``sha256:...`` over the checksums of all shards, and the names of the classes.
    """

    title: str
    splits: dict[str, ShardImages]
    labels: tuple[str, ...]
    shape: tuple[int, int, int]
    smallest: str
    shorter: float
    gray: bool
    moments: PixelStatistics
    checksum: str


def is_sharded(root: str | Path) -> bool:
    """Whether a folder has an index of shards."""
    return any(is_index(Path(root).expanduser() / f"{split}.json") for split in SPLITS)


def is_index(path: Path) -> bool:
    """Whether a file is, or was meant to be, an index of shards."""
    try:
        return path.is_file() and '"shardlist"' in path.read_text("utf-8")
    except (OSError, ValueError):
        return False


def load(
    root: str | Path,
    *,
    size: int | None = None,
    channels: int | None = None,
    share: float = 1.0,
    whole: bool = False,
    area: bool = False,
) -> ImageShards:
    """Read the indexes of a folder; no shard is read.

    Args:
        root: The folder, with train.json, test.json or valid.json, or all three, as
            `equilibria shards` writes them. Without test.json, valid.json is the test part.
        size: Pixels per side to which the central square of an image is resized; None for images
            that all have the same size, and are left as they are.
        channels: 3 or 1, to convert all images to RGB or greyscale; None for images that are all
            RGB or all greyscale.
        share: The part of the shorter side that the central square covers.
        whole: Whether train.json may be missing, to evaluate a model on the rest.
        area: Whether images are brought to `size` as `resize` does, by means over areas.

    Raises:
        DataError: If an index is missing or damaged, or images differ in size or colours.
    """
    root = Path(root).expanduser()
    shards = {
        split: tuple(read_index(path))
        for split in SPLITS
        if (path := root / f"{split}.json").exists()
    }
    abouts = {split: _about(root / f"{split}.json") for split in shards}
    if "test" not in shards and "valid" in shards:
        shards["test"], abouts["test"] = shards.pop("valid"), abouts.pop("valid")
    for split in ("test",) if whole else ("train", "test"):
        if split not in shards:
            raise DataError(
                f"{root} has no {split}.json, the index of the shards to "
                f"{'learn from' if split == 'train' else 'evaluate on'}: write it with equilibria "
                f"shards {root}"
            )
    first = abouts.get("train", abouts["test"])
    if any(each.labels != first.labels for each in abouts.values()):
        raise DataError(
            f"the indexes in {root} have different classes: rebuild them together with "
            f"equilibria shards {root}"
        )
    shape = (_channels(root, abouts, channels), *_size(root, abouts, size))
    view = ImageView(shape=shape, fits=size is None, share=share, area=area)
    return ImageShards(
        title=root.resolve().name,
        splits={
            split: ShardImages(shards=each, labels=first.labels, view=view)
            for split, each in shards.items()
        },
        labels=first.labels,
        shape=shape,
        smallest=first.smallest,
        shorter=first.shorter,
        gray=all(mode in GRAY for each in abouts.values() for mode in each.modes),
        moments=first.moments[shape[0]],
        checksum=_checksum(shards, first.labels),
    )


def _about(path: Path) -> About:
    tree = read_tree(path)
    if KEY not in tree:
        raise DataError(
            f"{path} does not say which classes and which sizes its images have: rebuild it "
            f"with equilibria shards {path.parent}"
        )
    try:
        return About.of(tree[KEY])
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(
            f"{path} is damaged ({error!r}): rebuild it with equilibria shards {path.parent}"
        ) from error


def _channels(root: Path, abouts: dict[str, About], channels: int | None) -> int:
    """Channels of an image: those asked for, or those that all have."""
    modes: dict[str, int] = {}
    for mode, count in ((m, n) for each in abouts.values() for m, n in each.modes.items()):
        modes[mode] = modes.get(mode, 0) + count
    if channels is None and len(modes) == 1 and set(modes) <= set(CHANNELS):
        return CHANNELS[next(iter(modes))]
    if channels is None:
        listed = ", ".join(f"{count:,} of mode {mode}" for mode, count in modes.items())
        raise DataError(
            f"the images of {root} are not all RGB or all grey ({listed}): have every image "
            "converted as it is read, with task.channels: 3 (RGB) or 1 (grey)"
        )
    return channels


def _size(root: Path, abouts: dict[str, About], size: int | None) -> tuple[int, int]:
    """Height and width of an image: those asked for, or those that all have."""
    if size is not None:
        return size, size
    found = {each.size for each in abouts.values()}
    known = found.pop()
    if known is None or found:
        raise DataError(
            f"the images of {root} differ in size: have them brought to one, for example with "
            "--task.size 64"
        )
    return known


def _checksum(shards: dict[str, tuple[Shard, ...]], labels: tuple[str, ...]) -> str:
    """Made of what the indexes say: of shards without a checksum, their names and lengths."""
    listed: dict[str, Any] = {
        split: [[shard.checksum or Path(shard.url).name, shard.samples] for shard in shards[split]]
        for split in sorted(shards)
    }
    text = json.dumps([listed, labels])
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


# --- survey ---------------------------------------------------------------------------------------

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


class _ShardContent(NamedTuple):
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
    surveyed = {split: _summarize(parts, labels) for split, parts in read.items()}
    for split, each in surveyed.items():
        shards = [replace(shard, url=_relative(shard.url, root)) for shard in each.shards]
        write_index(root / f"{split}.json", shards, {KEY: each.about.json()})
    return surveyed


def _read(urls: Sequence[str], split: str) -> list[_ShardContent]:
    measured = math.ceil(MEASURED / len(urls))
    found = decode.in_threads(lambda url: _one(url, measured), urls, THREADS, ahead=1)
    return list(track(found, len(urls), f"Reading the shards of {split}"))


def _one(url: str, measured: int) -> _ShardContent:
    """Read one shard, and decode `measured` of its images, spread evenly over it."""
    content = index.read_address(url)
    samples = parse_archive(content, url)
    if not samples:
        raise DataError(f"{url} has no samples: leave it out")
    step = max(1, len(samples) // measured)
    moments = [_moments(sample, url) for sample in samples[::step][:measured]]
    return _ShardContent(
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


def _labels(found: Sequence[_ShardContent]) -> tuple[str, ...]:
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


def _summarize(parts: Sequence[_ShardContent], labels: tuple[str, ...]) -> Surveyed:
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
    moments: dict[int, PixelStatistics] = {}
    for channels in MODES:
        mean, squares = np.mean([row for each in parts for row in each.moments[channels]], axis=0)
        deviation = np.sqrt(np.maximum(squares - np.square(mean), 0.0))
        moments[channels] = PixelStatistics(tuple(mean.tolist()), tuple(deviation.tolist()))
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
