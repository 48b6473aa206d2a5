"""CIFAR-10 as JPEG files in a tar archive: a lossy copy, decoded once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.dataset import Split
from equilibria.run.data.errors import DataError
from equilibria.run.data.progress import tracked
from equilibria.zoo.io import archive, checksums, decode, kept
from equilibria.zoo.io.remote import Remote

COUNTS = {"train": 5_000, "test": 1_000}
SIZE = (32, 32)

# A part of the name of every file in the cache: another layout must not meet this one.
_FORMAT = 2

REMOTE = Remote(
    files=("cifar10_jpg.tar.xz",),
    licence="none stated; cite Krizhevsky 2009",
    inside=("cifar10_jpeg", "."),
    copy="JPEG copy",
)


def read(path: Path, labels: tuple[str, ...]) -> dict[str, Split]:
    """The images of the archive, ``SPLIT/CLASS/NAME.jpg``, decoded by Pillow.

    In the archive the classes follow each other; here the first image of each class comes first,
    then the second of each, so that every part of a split has all classes. The pixels are kept in
    the user's cache, under the checksum of the archive.

    Args:
        path: The archive.
        labels: Names of the classes.

    Returns:
        "train" and "test", images as uint8, ``(count, 3, 32, 32)``.

    Raises:
        DataError: If the archive is damaged or holds other images.
    """
    key = checksums.digest(path).partition(":")[2][:24]

    def make() -> dict[str, Tensor]:
        return {
            f"{split}.{part}": tensor
            for split, found in _decoded(path, labels).items()
            for part, tensor in (("inputs", found.inputs), ("targets", found.targets))
        }

    found = kept.tensors(f"images/cifar10-jpeg-{_FORMAT}-{key}", make)
    return {split: Split(found[f"{split}.inputs"], found[f"{split}.targets"]) for split in COUNTS}


def _decoded(path: Path, labels: tuple[str, ...]) -> dict[str, Split]:
    files: dict[tuple[str, str], list[tuple[str, bytes]]] = {
        (split, label): [] for split in COUNTS for label in labels
    }
    for name, content in archive.members(path, lambda name: name.endswith(".jpg")):
        split, _, rest = name.partition("/")
        place = (split, rest.partition("/")[0])
        if place not in files:
            raise DataError(
                f"{name} in {path} belongs to no known class: expected train/CLASS/NAME.jpg and "
                f"test/CLASS/NAME.jpg, CLASS one of {', '.join(labels)}"
            )
        files[place].append((name, content))
    for (split, label), found in files.items():
        if len(found) != COUNTS[split]:
            raise DataError(
                f"{path} has {len(found)} images in {split}/{label}: expected {COUNTS[split]}"
            )
        found.sort()
    return {split: _split([files[split, label] for label in labels], path) for split in COUNTS}


def _split(classes: list[list[tuple[str, bytes]]], path: Path) -> Split:
    """Images of all classes, interleaved: the first of each, the second of each, ..."""
    interleaved = [file for row in zip(*classes, strict=True) for file in row]
    images = np.empty((len(interleaved), 3, *SIZE), np.uint8)
    decoded = decode.in_threads(
        lambda file: decode.pixels(file[1], f"{file[0]} in {path}", "RGB", SIZE), interleaved
    )
    for place, image in enumerate(tracked(decoded, len(interleaved), "Decoding CIFAR-10 once")):
        images[place] = image
    targets = torch.arange(len(classes)).repeat(len(interleaved) // len(classes))
    return Split(torch.from_numpy(images), targets)
