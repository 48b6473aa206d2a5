"""Where the images of a classification task come from, and which of them it takes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from equilibria.run.data import Dataset, Split, available, load
from equilibria.run.data.dataset import Samples
from equilibria.run.data.errors import DataError
from equilibria.run.tasks.normalisation import READ, Statistics
from equilibria.zoo.io import headers, selection
from equilibria.zoo.io.image_files import MEMORY
from equilibria.zoo.io.resize import resized
from equilibria.zoo.vision.data.images import ImageFiles, ImageFolder
from equilibria.zoo.vision.data.shards import dataset as shards
from equilibria.zoo.vision.data.shards.dataset import ImageShards
from equilibria.zoo.vision.task.seen import Seen

if TYPE_CHECKING:
    from equilibria.zoo.vision.task.classification import ImageClassification

__all__ = ["SHOWN", "Images", "chosen", "found", "statistics"]

SHOWN = 7 / 8
"""The part of an image's shorter side that is judged where training shows random parts: the usual
224 pixels of 256 on ImageNet."""

Images = Dataset | ImageFolder | ImageShards
"""In memory, in files, or in shards."""


def found(config: ImageClassification, data_dir: Path | None, seen: Seen | None) -> Images:
    """Read a named data set, or find the images of a folder, to be seen as a run has seen its own.

    Raises:
        ValueError: there is no such data set.
        DataError: it is missing or damaged; the message names the file.
    """
    assert config.data is not None  # as `load` has checked
    if config.data not in available(Dataset):
        share = SHOWN if config.crop is not None else 1.0
        options = {"size": config.size, "channels": config.channels, "share": share}
        if config.data not in available(ImageFolder):
            area = seen is not None and seen.resize is not None and seen.resize.filter == "area"
            options.update(whole=seen is not None, area=area)
            if shards.is_sharded(config.data):
                return shards.load(config.data, **options)
            if shards.is_index(path := Path(config.data).expanduser()):
                raise DataError(
                    f"{path} is one index of shards: name the folder of all of them, {path.parent}"
                )
        return load(config.data, data_dir, kind=Dataset | ImageFolder, **options)
    if config.channels is not None:
        raise ValueError(
            f"channels is {config.channels}, and '{config.data}' has the channels that it has: "
            "it is for a folder of images; set it to null"
        )
    return load(config.data, data_dir)


def statistics(images: Images, train: Samples) -> Statistics:
    """Return those by which images are normalised: of shards, those that the index holds."""
    if isinstance(images, ImageShards):
        return Statistics.checked(images.moments.mean, images.moments.deviation)
    return Statistics.of(train, READ if isinstance(train, ImageFiles) else None)


def _streamed(config: ImageClassification, images: ImageShards) -> dict[str, Samples]:
    """Return the images of each split, which stay in their shards.

    Raises:
        ValueError: a part of them is asked for.
    """
    for name in ("samples", "valid"):
        if (value := getattr(config, name)) is not None:
            raise ValueError(
                f"{name} is {value}, and shards are streamed as they are: set task.{name} to null, "
                "and give other shards to equilibria shards"
            )
    return cast(dict[str, Samples], images.splits)


def chosen(config: ImageClassification, images: Images) -> dict[str, Samples]:
    """Return the images of each split: "test", and perhaps "train" and "valid".

    Images in files are decoded here, once, where they fit into memory and are shown as a whole.

    Raises:
        ValueError: there are not so many images.
        DataError: one of not too many images is damaged; the message names the file.
    """
    if isinstance(images, ImageShards):
        return _streamed(config, images)
    if config.lanes is not None:
        raise ValueError(
            f"lanes is {config.lanes}, and the images of '{config.data}' are not in shards: set "
            "task.lanes to null"
        )
    taken: dict[str, Samples] = {"train": images.train} if len(images.train) else {}
    if config.valid is not None and images.valid is not None:
        raise ValueError(
            f"valid is {config.valid}, and '{config.data}' has images of its own to validate on: "
            "set task.valid to null"
        )
    if config.valid is not None or config.samples is not None:
        targets = images.train.targets
        learned, aside = selection.parts(targets, images.labels, config.valid, config.samples)
        taken["train"] = images.train.select(learned)
        if aside is not None:
            taken["valid"] = images.train.select(aside)
    if images.valid is not None:
        taken["valid"] = images.valid
    taken["test"] = images.test
    small = sum(map(len, taken.values())) <= headers.SMALL
    for name, each in taken.items():
        if isinstance(each, ImageFiles):
            if each.bytes <= MEMORY and not (name == "train" and config.crop is not None):
                taken[name] = each.decoded()
            elif small:
                each.check()
        elif isinstance(each, Split) and config.size is not None:
            taken[name] = Split(resized(each.inputs, config.size), each.targets)
    return taken
