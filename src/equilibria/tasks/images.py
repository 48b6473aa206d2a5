"""The images that a task is about: chosen, set aside, and brought to their size."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from equilibria.data import Dataset, Split, available, load
from equilibria.data.dataset import Samples
from equilibria.data.images import ImageFiles, ImageFolder, headers
from equilibria.data.images.files import MEMORY
from equilibria.data.images.resize import resized
from equilibria.tasks import selection

if TYPE_CHECKING:
    from equilibria.tasks.classification import ImageClassification

SHOWN = 7 / 8
"""The part of an image's shorter side that is judged where training shows random parts: the usual
224 pixels of 256 on ImageNet."""


def find(config: ImageClassification, data_dir: Path | None) -> Dataset | ImageFolder:
    """Read a named data set, or find the images of a folder.

    Raises:
        ValueError: there is no such data set.
        DataError: it is missing or damaged; the message names the file.
    """
    if config.data not in available(Dataset):
        share = SHOWN if config.crop is not None else 1.0
        options = {"size": config.size, "channels": config.channels, "share": share}
        return load(config.data, data_dir, kind=Dataset | ImageFolder, **options)
    if config.channels is not None:
        raise ValueError(
            f"channels is {config.channels}, and '{config.data}' has the channels that it has: "
            "it is for a folder of images; set it to null"
        )
    return load(config.data, data_dir)


def choose(config: ImageClassification, found: Dataset | ImageFolder) -> dict[str, Samples]:
    """Return the images of each split: "train", "test" and perhaps "valid".

    Images in files are decoded here, once, where they fit into memory and are shown as a whole.

    Raises:
        ValueError: there are not so many images.
        DataError: one of not too many images is damaged; the message names the file.
    """
    chosen: dict[str, Samples] = {"train": found.train}
    if config.valid is not None and found.valid is not None:
        raise ValueError(
            f"valid is {config.valid}, and '{config.data}' has images of its own to validate on: "
            "set task.valid to null"
        )
    if config.valid is not None or config.samples is not None:
        targets = found.train.targets
        learned, aside = selection.parts(targets, found.labels, config.valid, config.samples)
        chosen["train"] = found.train.select(learned)
        if aside is not None:
            chosen["valid"] = found.train.select(aside)
    if found.valid is not None:
        chosen["valid"] = found.valid
    chosen["test"] = found.test
    small = sum(map(len, chosen.values())) <= headers.SMALL
    for name, images in chosen.items():
        if isinstance(images, ImageFiles):
            if images.bytes <= MEMORY and not (name == "train" and config.crop is not None):
                chosen[name] = images.decoded()
            elif small:
                images.check()
        elif isinstance(images, Split) and config.size is not None:
            chosen[name] = Split(resized(images.inputs, config.size), images.targets)
    return chosen
