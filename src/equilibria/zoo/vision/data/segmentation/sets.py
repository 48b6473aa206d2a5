"""Images with masks, decoded on demand or kept in memory."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.errors import DataError
from equilibria.run.data.progress import tracked
from equilibria.zoo.io import decode
from equilibria.zoo.io.image_files import MEMORY

VOID = 255
"""What a mask has where a pixel has no class, or none that counts."""

Size = tuple[int, int]
"""Height and width, in pixels."""


class Source(Protocol):
    """Images and masks by their places."""

    def image(self, place: int) -> Tensor:
        """Return an image, uint8, ``(channels, height, width)``."""
        ...

    def mask(self, place: int) -> Tensor:
        """Return a mask, uint8, ``(height, width)``: numbers of classes, and `VOID`."""
        ...


@dataclass(frozen=True, kw_only=True)
class MaskedImages:
    """Images, each with the class of each of its pixels.

    Attributes:
        names: Names of the images, without folder and ending.
        sizes: Height and width of each as it is given out.
        channels: 3 of RGB, 1 of grey.
        source: Gives images and masks out.
        places: Where in `source` each is.
    """

    names: Sequence[str] = field(repr=False)
    sizes: Sequence[Size] = field(repr=False)
    channels: int
    source: Source = field(repr=False)
    places: Sequence[int] = field(repr=False)

    def __len__(self) -> int:
        return len(self.names)

    def image(self, place: int) -> Tensor:
        """Return an image, uint8, ``(channels, height, width)``.

        Raises:
            DataError: If its file cannot be read or is damaged; the message names it.
        """
        return self.source.image(self.places[place])

    def mask(self, place: int) -> Tensor:
        """Return a mask, uint8, ``(height, width)``: numbers of classes, `VOID` for none.

        Raises:
            DataError: If its file cannot be read or is damaged; the message names it.
        """
        return self.source.mask(self.places[place])

    @property
    def same_size(self) -> bool:
        """Whether all images have one size."""
        return len(set(self.sizes)) <= 1

    @property
    def bytes(self) -> int:
        """Bytes of memory that all images and masks would take."""
        return sum((self.channels + 1) * height * width for height, width in self.sizes)

    def select(self, index: Tensor) -> MaskedImages:
        """The images at some places, in that order."""
        chosen: list[int] = index.tolist()
        return replace(
            self,
            names=[self.names[k] for k in chosen],
            sizes=[self.sizes[k] for k in chosen],
            places=[self.places[k] for k in chosen],
        )

    def decoded(self) -> MaskedImages:
        """The same in memory, where that takes no more than `MEMORY`; otherwise itself.

        Raises:
            DataError: If a file cannot be read or is damaged; the message names it.
        """
        if isinstance(self.source, Kept) or self.bytes > MEMORY:
            return self
        pairs = decode.in_threads(lambda k: (self.image(k), self.mask(k)), range(len(self)))
        kept = list(tracked(pairs, len(self), "Reading images"))
        source = Kept([image for image, _ in kept], [mask for _, mask in kept])
        return replace(self, source=source, places=range(len(self)))


@dataclass(frozen=True)
class Kept:
    """Images and masks in memory."""

    images: Sequence[Tensor] | Tensor
    masks: Sequence[Tensor] | Tensor

    def image(self, place: int) -> Tensor:
        """Return an image."""
        return self.images[place]

    def mask(self, place: int) -> Tensor:
        """Return a mask."""
        return self.masks[place]


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Images and masks in the formats of their files, wherever these are.

    Attributes:
        read: Gives the content of a file, by its name.
        images: Names of the images' files, as messages have them.
        masks: Names of the masks' files, in the same order.
        mode: ``"RGB"`` or ``"L"``, what images are read as.
        sizes: Height and width that images and masks are given out in.
        stored: Height and width that they have.
        numbers: The class, or `VOID`, that each value of a mask stands for, int16 ``(256,)``, -1
            for a value that stands for nothing; or a function of the pixels of a mask, ``(height,
            width)`` or ``(height, width, 3)``, and its name.
    """

    read: Callable[[str], bytes]
    images: Sequence[str]
    masks: Sequence[str]
    mode: str
    sizes: Sequence[Size]
    stored: Sequence[Size]
    numbers: np.ndarray | Callable[[np.ndarray, str], np.ndarray]

    def image(self, place: int) -> Tensor:
        """Return an image, interpolated linearly, over as many pixels as one covers."""
        name, size = self.images[place], self.sizes[place]
        same = size == self.stored[place]
        part = None if same else (lambda height, width: (0.0, 0.0, float(height), float(width)))
        content = self.read(name)
        return torch.from_numpy(
            np.ascontiguousarray(decode.pixels(content, name, self.mode, size, part))
        )

    def mask(self, place: int) -> Tensor:
        """Return a mask; in another size, of the nearest pixels.

        Raises:
            DataError: If it is damaged, has another size than its image, or a value that stands for
                nothing.
        """
        name = self.masks[place]
        values = mask_pixels(self.read(name), name)
        if values.shape[:2] != self.stored[place]:
            high, wide = self.stored[place]
            raise DataError(
                f"{name} has {values.shape[0]} x {values.shape[1]} pixels and its image "
                f"{self.images[place]} has {high} x {wide}: a mask has the size of its image"
            )
        of = self.numbers
        classes = of(values, name) if callable(of) else numbered(values, of, name)
        if (size := self.sizes[place]) != self.stored[place]:
            rows, columns = (
                nearest(old, new) for old, new in zip(classes.shape, size, strict=True)
            )
            classes = classes[rows[:, None], columns]
        return torch.from_numpy(np.ascontiguousarray(classes))


def numbered(values: np.ndarray, numbers: np.ndarray, name: str) -> np.ndarray:
    """The classes that the values of a mask stand for, uint8.

    Args:
        values: ``(height, width)``, uint8.
        numbers: As `Encoded` has them.
        name: Of the mask, for messages.

    Raises:
        DataError: If a value stands for nothing, or the mask is of colours.
    """
    if values.ndim != 2:
        raise DataError(f"{name} is RGB: expected a mask of palette colours or grey, of one number")
    classes = numbers[values]
    if (unknown := classes < 0).any():
        raise DataError(
            f"{name} has the value {values[unknown][0]} ({unknown.sum():,} pixels), which stands "
            f"for none of the {len(set(numbers.tolist()) - {VOID, -1})} classes: it is another file"
        )
    return classes.astype(np.uint8)


def nearest(old: int, new: int) -> np.ndarray:
    """The pixels of a line of `old` that those of a line of `new` are nearest to."""
    return np.minimum(((np.arange(new) + 0.5) * old / new).astype(np.int64), old - 1)


_STEPS = {"L;2": 85, "L;4": 17}
"""By how much Pillow multiplies grey of 2 and 4 bits, so that it has 8: white becomes 255."""


def mask_pixels(content: bytes, name: str | Path) -> np.ndarray:
    """Decode a mask: the numbers of a palette or of grey as they are stored, or RGB.

    It is turned upright by Exif, as its image is.

    Returns:
        uint8, ``(height, width)``, or ``(height, width, 3)`` of RGB.

    Raises:
        DataError: If it is damaged, or of another kind; the message names it.
    """
    image = decode.identified(io.BytesIO(content), name)
    step = next((_STEPS[str(t[3])] for t in getattr(image, "tile", ()) if str(t[3]) in _STEPS), 1)
    if image.mode not in ("P", "L", "1", "RGB"):
        raise DataError(
            f"{name} is a mask of mode {image.mode}: expected a PNG with 8 bits per pixel, grey or "
            "of palette colours, whose numbers are the classes"
        )
    try:
        stored = decode.orientation(image)
        image.load()
        found = np.asarray(decode.upright(image, stored))
    except Exception as error:  # what a damaged file raises depends on its format
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{name} is damaged ({reason}): remove or replace it") from None
    return found.astype(np.uint8) if image.mode == "1" else found // step


@dataclass(frozen=True, kw_only=True)
class SegmentationSet:
    """Images with masks to learn from and to test on.

    Attributes:
        title: Its name in tables.
        train: Training images.
        test: Test images.
        valid: Validation images; None if there are none.
        labels: Names of the classes, in the order of their numbers.
        colours: Red, green and blue of each class, 0 to 255, for pictures of masks.
        checksum: ``sha256:...`` over all that is in the files, or, where there are very many, over
            their names and lengths.
        values: The value of each class in the files of masks; empty for 0, 1, ...
    """

    title: str
    train: MaskedImages
    test: MaskedImages
    valid: MaskedImages | None
    labels: tuple[str, ...]
    colours: tuple[tuple[int, int, int], ...]
    checksum: str
    values: tuple[int, ...] = ()

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.labels)


def palette(count: int) -> tuple[tuple[int, int, int], ...]:
    """Return colours that differ as much as few bits allow: those of Pascal VOC.

    The bits of a number, three at a time from the lowest, are the bits of red, green and blue, from
    the highest: 0 is black, 1 dark red, 2 dark green.

    Source: Everingham et al. 2012, VOCdevkit, VOClabelcolormap.
    """
    colours: list[tuple[int, int, int]] = []
    for number in range(count):
        channels = [0, 0, 0]
        for place in range(8):
            bits = number >> (3 * place)
            for channel in range(3):
                channels[channel] |= (bits >> channel & 1) << (7 - place)
        colours.append((channels[0], channels[1], channels[2]))
    return tuple(colours)
