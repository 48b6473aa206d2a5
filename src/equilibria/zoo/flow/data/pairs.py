"""Pairs of images with the flow between them, read or made when they are asked for."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.storage import DataError, read_errors
from equilibria.words import others
from equilibria.zoo.flow.data.formats import read_flow
from equilibria.zoo.io import decode
from equilibria.zoo.io.download import fingerprint

Size = tuple[int, int]
"""Height and width, in pixels."""


class FlowPair(NamedTuple):
    """Two images and the flow of the first; those of a batch have one more axis, in front."""

    first: Tensor
    """RGB, uint8, ``(3, height, width)``."""
    second: Tensor
    """RGB, uint8, ``(3, height, width)``."""
    flow: Tensor
    """In pixels, to the right and downwards, float32, ``(2, height, width)``."""
    valid: Tensor
    """Where the flow is known, bool, ``(height, width)``."""


class Pairs(Protocol):
    """Pairs in an order that never changes."""

    def __len__(self) -> int: ...

    def size(self, place: int) -> Size:
        """Height and width of a pair, without reading its pixels."""
        ...

    def pair(self, place: int) -> FlowPair:
        """Read or make one pair.

        Raises:
            DataError: If a file cannot be read or is damaged, or sizes differ; the message names
                the file.
        """
        ...

    def batch(self, places: Tensor) -> FlowPair:
        """Read or make the pairs at some places, ``(count,)``, which have one size.

        Raises:
            DataError: As `pair`, and if the pairs differ in size.
        """
        ...

    def select(self, index: Tensor) -> Self:
        """The pairs at some places, in that order."""
        ...


@dataclass(frozen=True, kw_only=True)
class FlowSet:
    """Pairs of images with the flow between them, to learn from and to test on.

    Attributes:
        title: Its name in tables.
        train: Training pairs; None if there are none.
        test: Test pairs.
        valid: Validation pairs; None if there are none.
        seen: Whether the test pairs are training pairs too, as of data sets whose other flow was
            never published: figures of a model that has learned from them go in brackets.
        checksum: ``sha256:...`` over what decides the pairs; of files, over names, lengths and
            times of change.
    """

    title: str
    train: Pairs | None
    test: Pairs
    valid: Pairs | None = None
    seen: bool = False
    checksum: str


def stack_pairs(pairs: Iterable[FlowPair]) -> FlowPair:
    """A batch of some pairs.

    Raises:
        DataError: If they differ in size.
    """
    every = list(pairs)
    sizes = sorted({tuple(pair.valid.shape) for pair in every})
    if len(sizes) > 1:
        (high, wide), (other_high, other_wide) = sizes[:2]
        raise DataError(
            f"pairs of one batch differ in size: {high} x {wide} and {other_high} x {other_wide} "
            "pixels (height x width); take a crop of one size, or batches of one pair"
        )
    return FlowPair(*(torch.stack(parts) for parts in zip(*every, strict=True)))


# --- files ----------------------------------------------------------------------------------------

# Pairs of images and their flow in files, read when they are asked for.


class Names(NamedTuple):
    """The files of a pair, below one folder."""

    name: str
    """What tables call the pair."""
    first: str
    second: str
    flow: str
    unknown: str = ""
    """An image that is not black where the flow is unknown, if there is one."""


@dataclass(frozen=True, kw_only=True)
class PairFiles:
    """Pairs that stay on disk until they are used.

    Attributes:
        root: Folder of the files.
        files: Those of each pair.
    """

    root: Path
    files: Sequence[Names] = field(repr=False)

    def __len__(self) -> int:
        return len(self.files)

    @property
    def names(self) -> list[str]:
        """What tables call each pair."""
        return [each.name for each in self.files]

    def size(self, place: int) -> Size:
        """Height and width of a pair, by the header of its first image.

        Raises:
            DataError: If that is missing, or no image of 8-bit RGB.
        """
        path = self.root / self.files[place].first
        with decode.open_image(path) as file, read_errors(path):
            image = decode.identify_image(file, path)
            return image.height, image.width

    def first(self, place: int) -> Tensor:
        """Read the first image of a pair, uint8, ``(3, height, width)``.

        Raises:
            DataError: If it cannot be read, is damaged, or is not of 8-bit RGB.
        """
        return _image(self.root / self.files[place].first)

    def pair(self, place: int) -> FlowPair:
        """Read one pair.

        Raises:
            DataError: If a file cannot be read, is damaged or of another kind, sizes differ, or no
                pixel has a valid flow; the message names the file.
        """
        names = self.files[place]
        paths = [self.root / name for name in (names.first, names.second, names.flow)]
        first, second = (_image(path) for path in paths[:2])
        flow, valid = (found := read_flow(paths[2])).flow, found.valid
        _check_size(paths[1], second.shape[1:], paths[0], first.shape[1:])
        _check_size(paths[2], valid.shape, paths[0], first.shape[1:])
        if names.unknown:
            path = self.root / names.unknown
            mask = torch.from_numpy(
                np.ascontiguousarray(decode.pixels(decode.read_image(path), path, "L", None))
            )
            _check_size(path, mask.shape[1:], paths[0], first.shape[1:])
            valid = valid & (mask[0] == 0)
            if not valid.any():
                raise DataError(f"{path} leaves no pixel of {paths[2]} valid: expected some black")
            flow = flow * valid
        return FlowPair(first, second, flow, valid)

    def batch(self, places: Tensor) -> FlowPair:
        """Read the pairs at some places, several at once.

        Raises:
            DataError: As `pair`, and if the pairs differ in size.
        """
        return stack_pairs(decode.in_threads(self.pair, places.tolist()))

    def select(self, index: Tensor) -> PairFiles:
        """The pairs at some places, in that order."""
        return replace(self, files=[self.files[k] for k in index.tolist()])


def find_pairs(
    root: Path, splits: Mapping[str, Sequence[Names]]
) -> tuple[dict[str, PairFiles], str]:
    """Return the pairs of each split, and a checksum of what is on disk.

    Raises:
        DataError: If a file is missing; the message names it.
    """
    names = [name for files in splits.values() for each in files for name in each[1:] if name]
    if lacking := [name for name in names if not (root / name).is_file()]:
        raise DataError(
            f"{root / lacking[0]} is missing{others(lacking)}: unpack the data set again"
        )
    found = {split: PairFiles(root=root, files=files) for split, files in splits.items()}
    return found, fingerprint(root, names)


def list_files(folder: Path, ending: str = "") -> list[str]:
    """Names of the files in a folder that end so, sorted; hidden ones are left out.

    Raises:
        DataError: If it is missing.
    """
    with read_errors(folder):
        return sorted(
            entry.name
            for entry in os.scandir(folder)
            if entry.name.endswith(ending) and entry.name[0] != "." and not entry.is_dir()
        )


def _image(path: Path) -> Tensor:
    """An image of 8-bit RGB, uint8, ``(3, height, width)``."""
    content = decode.read_image(path)
    image = decode.identify_image(io.BytesIO(content), path)
    # Pillow reads colours of 16 bits as those of 8 without a word; the decoder's arguments tell.
    deep = any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))
    if deep or image.mode[:1] in ("I", "F"):
        raise DataError(
            f"{path} has more than 8 bits per channel (mode {image.mode}): images of a pair are "
            "RGB with 8. Convert it, so that white is 255, for example with ImageMagick: magick "
            "FILE -depth 8 FILE"
        )
    if image.mode != "RGB":
        raise DataError(
            f"{path} has the mode {image.mode}: images of a pair are RGB. Convert it, in Python: "
            "Image.open(path).convert('RGB').save(path)"
        )
    return torch.from_numpy(np.ascontiguousarray(decode.pixels(content, path, "RGB", None)))


def _check_size(path: Path, size: Sequence[int], first: Path, expected: Sequence[int]) -> None:
    if tuple(size) != tuple(expected):
        raise DataError(
            f"{path} has {size[0]} x {size[1]} pixels (height x width) and {first} has "
            f"{expected[0]} x {expected[1]}: the images of a pair and its flow have one size"
        )
