"""Photographs for generated pairs: what the layers show, kept apart for training and testing."""

from __future__ import annotations

import hashlib
import os
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data import registry
from equilibria.run.data.storage import DataError, read_errors
from equilibria.run.registry import find as registered
from equilibria.run.registry import resolve
from equilibria.zoo.flow.data.pairs import FlowSet, PairFiles
from equilibria.zoo.io import decode
from equilibria.zoo.io.decode import resize
from equilibria.zoo.io.image_files import MEMORY
from equilibria.zoo.io.layout import STRAY

SIDE = 1024
"""Pixels of a photograph's longer side, at most: a larger one is made smaller as it is read."""

MOST = 200
"""Images of a data set's part, at most: more make pairs no more various."""

SMALLEST = 32
"""Pixels of a part's shorter side, at least."""


@dataclass(frozen=True, kw_only=True)
class Photographs:
    """Photographs, uint8, ``(3, height, width)``, of any sizes.

    Attributes:
        title: Where they come from.
        train: Those, or those parts, that training pairs show.
        test: Those that test pairs show.
    """

    title: str
    train: Sequence[Tensor] = field(repr=False)
    test: Sequence[Tensor] = field(repr=False)

    @classmethod
    def divide(cls, title: str, images: Sequence[Tensor], names: Sequence[str]) -> Photographs:
        """Keep the right third of each photograph for the test pairs.

        Raises:
            DataError: If there are none, or one is too small for that; the message names it.
        """
        if not images:
            raise DataError(f"{title} has no photographs: name a folder with images")
        for image, name in zip(images, names, strict=True):
            if min(image.shape[1], image.shape[2] // 3) < SMALLEST:
                raise DataError(
                    f"{name} has {image.shape[1]} x {image.shape[2]} pixels (height x width): "
                    f"photographs for layers have at least {SMALLEST} x {3 * SMALLEST}"
                )
        at = [2 * image.shape[2] // 3 for image in images]
        return cls(
            title=title,
            train=[i[:, :, :k].contiguous() for i, k in zip(images, at, strict=True)],
            test=[i[:, :, k:].contiguous() for i, k in zip(images, at, strict=True)],
        )

    @property
    def checksum(self) -> str:
        """Of all pixels, sha256, as hexadecimal digits."""
        total = hashlib.sha256()
        for part in (self.train, self.test):
            for image in part:
                total.update(str(tuple(image.shape)).encode() + image.numpy().tobytes())
        return total.hexdigest()


def find(
    source: str | None, data_dir: str | os.PathLike[str] | None = None, download: bool = True
) -> Photographs:
    """Return photographs by where they come from.

    Args:
        source: A folder of images; the name of a data set of images with masks or of flow, such as
            ``"camvid"``, of which up to 200 training images are shown by training pairs, and as
            many test images by test pairs; or None for the two photographs that come with
            scikit-learn. Of each photograph of these, of a folder, and of a data set whose test
            images are not apart, the right third is kept for the test pairs.
        data_dir: Where data sets are looked for first.
        download: Whether a data set that is missing may be downloaded.

    Raises:
        DataError: If they are missing or damaged, or too small.
        ValueError: If no such data set has that name.
    """
    if source is None:
        # Imported here: scikit-learn takes a second to import.
        from sklearn.datasets import load_sample_images

        found = load_sample_images()
        images = [
            torch.from_numpy(np.ascontiguousarray(i.transpose(2, 0, 1))) for i in found.images
        ]
        return Photographs.divide("scikit-learn's photographs", images, found.filenames)
    path = Path(source).expanduser()
    if path.is_dir():
        return _read_folder(path)
    if path.name != source:
        raise DataError(f"there is no folder {source}: name a folder of photographs")
    return _read_set(source, data_dir, download)


def _read_folder(path: Path) -> Photographs:
    with read_errors(path):
        names = sorted(e.name for e in os.scandir(path) if e.is_file() and e.name[0] != ".")
    names = [str(path / name) for name in names if name.lower() not in STRAY]

    def of(name: str) -> Tensor:
        pixels = decode.pixels(decode.read_image(Path(name)), name, "RGB", None)
        return _shrink(torch.from_numpy(np.ascontiguousarray(pixels)))

    return Photographs.divide(path.resolve().name, _read(decode.in_threads(of, names), path), names)


def _read_set(source: str, data_dir: str | os.PathLike[str] | None, download: bool) -> Photographs:
    """Images of a data set, evenly spread."""
    if source == "layers":
        raise ValueError("photographs is 'layers', which are made of photographs: name other ones")
    found = registry.load(source, data_dir, download, kind=_find_kind(source))

    def images(split: Any) -> list[Tensor]:
        count = min(MOST, len(split))
        places = [k * len(split) // count for k in range(count)]
        of = split.first if isinstance(split, PairFiles) else split.image
        read = decode.in_threads(lambda k: _shrink(of(k)), places)
        return [image.expand(3, -1, -1) for image in _read(read, found.title)]

    if found.train is not None and len(found.train) and not getattr(found, "seen", False):
        return Photographs(title=found.title, train=images(found.train), test=images(found.test))
    whole = images(found.test)
    return Photographs.divide(found.title, whole, [f"an image of {found.title}"] * len(whole))


def _find_kind(source: str) -> Any:
    """The type of a data set: `FlowSet` or one with `_PhotographFiles`; all, of an unknown name.

    Raises:
        ValueError: If the data set is of another type.
    """
    known = registered("data")
    if source not in known:
        return object
    kind = resolve(known[source][0])
    if kind is not FlowSet and not _has_images(kind):
        raise ValueError(f"the data set {source!r} has no images of scenes: name another one")
    return kind


@runtime_checkable
class _PhotographFiles(Protocol):
    """Images by their places."""

    def image(self, place: int, /) -> Tensor:
        """Return an image, uint8, ``(channels, height, width)``."""
        ...


def _has_images(kind: type) -> bool:
    try:
        test = typing.get_type_hints(kind).get("test")
    except NameError:  # of a stranger's type, whose annotations only a type checker resolves
        return False
    return isinstance(test, type) and issubclass(test, _PhotographFiles)


def _shrink(image: Tensor) -> Tensor:
    """An image whose longer side has no more than `SIDE` pixels."""
    high, wide = image.shape[1:]
    shrink = SIDE / max(high, wide)
    if shrink >= 1:
        return image
    return resize(image[None], (max(1, round(high * shrink)), max(1, round(wide * shrink))))[0]


def _read(images: Iterable[Tensor], where: object) -> list[Tensor]:
    found, total = list[Tensor](), 0
    for image in images:
        total += image.numel()
        if total > MEMORY:
            raise DataError(
                f"the photographs of {where} take more than {MEMORY:,} bytes of memory: choose "
                "fewer, a few hundred are plenty"
            )
        found.append(image)
    return found
