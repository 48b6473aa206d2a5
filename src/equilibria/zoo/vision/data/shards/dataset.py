"""A folder of indexes: a data set of images that is streamed from shards."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from equilibria.run.data.storage import DataError
from equilibria.zoo.io.headers import CHANNELS
from equilibria.zoo.io.image_files import View
from equilibria.zoo.vision.data.shards.images import ShardImages
from equilibria.zoo.vision.data.shards.index import (
    KEY,
    About,
    Moments,
    Shard,
    read_index,
    read_tree,
)

GREY = ("1", "L", "LA", "La")
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
    grey: bool
    moments: Moments
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
    view = View(shape=shape, fits=size is None, share=share, area=area)
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
        grey=all(mode in GREY for each in abouts.values() for mode in each.modes),
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
