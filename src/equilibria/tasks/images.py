"""The images that a task is about: chosen, set aside, and brought to their size."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from equilibria import data
from equilibria.data import DataError, Split
from equilibria.data.dataset import Samples
from equilibria.data.images import ImageFiles, ImageFolder, folder, headers, imagenet, layout
from equilibria.data.images.files import MEMORY
from equilibria.data.images.resize import resized
from equilibria.tasks import selection

SHOWN = 7 / 8
"""The part of an image's shorter side that is judged where training shows random parts: the usual
224 pixels of 256 on ImageNet."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which images, and how many pixels of them; see `ImageClassification`."""

    data: str
    size: int | None
    channels: int | None
    samples: int | None
    valid: int | None
    crop: float | None


@dataclass(frozen=True, kw_only=True)
class Images:
    """Images with their classes.

    Attributes:
        samples: by the name of the split: "train", "test" and perhaps "valid".
        files: those to learn from where they are decoded as they are asked for.
        title: what tables call them.
        labels: names of the classes.
        shape: channels, height and width.
        smallest: the smallest file, in words, where images are shown as they are in files.
        checksum: of all the data.
    """

    samples: dict[str, Samples]
    files: ImageFiles | None
    title: str
    labels: tuple[str, ...]
    shape: tuple[int, ...]
    smallest: str | None
    checksum: str


def read(choice: Choice, data_dir: Path | None) -> Images:
    """Read a named data set, or find the images of a folder.

    Raises:
        ValueError: there is no such data set, or not so many images.
        DataError: it is missing or damaged; the message names the file.
    """
    name = choice.data
    if name in data.available():
        return _named(choice, data_dir)
    share = SHOWN if choice.crop is not None else 1.0
    options = {"size": choice.size, "channels": choice.channels, "share": share}
    if name == imagenet.NAME:
        return _photographs(choice, imagenet.folder(data_dir, **options))
    if Path(name).expanduser().is_dir():
        return _photographs(choice, folder.load(name, **options))
    if Path(name).name != name:
        raise DataError(f"there is no folder {name}; {layout.EXPECTED}")
    names = [*data.available(), imagenet.NAME]
    near = difflib.get_close_matches(name, names, n=1, cutoff=0)
    raise ValueError(
        f"no data set is called {name!r}, and no folder: did you mean {near[0]!r}? There are "
        f"{', '.join(names)}, and any folder of yours that has a folder a class"
    )


def _named(choice: Choice, data_dir: Path | None) -> Images:
    """A data set that fits into memory."""
    if choice.channels is not None:
        raise ValueError(
            f"channels is {choice.channels}, and '{choice.data}' has the channels that it has: "
            "it is for a folder of images; set it to null"
        )
    found = data.load(choice.data, data_dir)
    parts = _parts(choice, found.train.targets, found.labels)
    samples = {name: found.train.select(places) for name, places in parts.items()}
    samples["test"] = found.test
    if (size := choice.size) is not None:
        samples = {k: Split(resized(s.inputs, size), s.targets) for k, s in samples.items()}
    return Images(
        samples={**samples},
        files=None,
        title=found.title,
        labels=found.labels,
        shape=tuple(samples["train"].inputs.shape[1:]),
        smallest=None,
        checksum=found.checksum,
    )


def _photographs(choice: Choice, found: ImageFolder) -> Images:
    """Images in files: decoded once where they fit into memory and are shown as a whole."""
    if choice.valid is not None and found.valid is not None:
        raise ValueError(
            f"valid is {choice.valid}, and '{choice.data}' has images of its own to validate on: "
            "set task.valid to null"
        )
    parts = _parts(choice, found.train.targets, found.labels)
    files = {name: found.train.select(places) for name, places in parts.items()}
    files |= {} if found.valid is None else {"valid": found.valid}
    files["test"] = found.test
    samples: dict[str, Samples] = {}
    small = sum(map(len, files.values())) <= headers.SMALL
    for name, each in files.items():
        learned = name == "train" and choice.crop is not None
        if each.bytes <= MEMORY and not learned:
            samples[name] = each.decoded()
        else:
            samples[name] = each
            if small:
                each.check()
    train = samples["train"]
    return Images(
        samples=samples,
        files=train if isinstance(train, ImageFiles) else None,
        title=found.title,
        labels=found.labels,
        shape=found.shape,
        smallest=None if choice.size else found.smallest,
        checksum=found.checksum,
    )


def _parts(choice: Choice, targets: Tensor, labels: tuple[str, ...]) -> dict[str, Tensor]:
    """The places of images to learn from, and of those set aside where there are any."""
    learned, aside = selection.parts(targets, labels, choice.valid, choice.samples)
    return {"train": learned} | ({} if aside is None else {"valid": aside})
