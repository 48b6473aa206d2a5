"""Images that stay on disk until they are used."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.dataset import Split
from equilibria.run.data.storage import DataError, track
from equilibria.zoo.io import decode
from equilibria.zoo.io.decode import Box

# --- crops ----------------------------------------------------------------------------------------

# Random parts of an image: which box is cut out.


NARROWEST = 3 / 4
"""The minimum ratio of width to height; the maximum is its inverse."""


def draw(count: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw what decides `count` boxes: four numbers in [0, 1) for each, ``(count, 4)``."""
    return torch.rand(count, 4, dtype=torch.float64, generator=generator)


def boxes(drawn: Tensor, smallest: float, height: int, width: int) -> Tensor:
    """Return boxes in an image: its share of the area is uniform from `smallest` to 1.

    The logarithm of width over height is uniform between those of 3/4 and 4/3, and the place
    uniform among those within the image; a side that would be longer than the image's is as long.

    Args:
        drawn: Of `draw`, ``(count, 4)``.
        smallest: Least share of the area, in (0, 1].
        height: Of the image, in pixels.
        width: Of the image, in pixels.

    Returns:
        Top, left, height and width in pixels, not whole numbers, ``(count, 4)``.

    Source: Szegedy et al. 2015, sec. 6 (training on patches of 8 to 100 % of the area).
    """
    share, ratio, down, right = drawn.unbind(1)
    area = (smallest + (1 - smallest) * share) * (height * width)
    ratio = torch.exp((1 - 2 * ratio) * math.log(NARROWEST))
    wide = (area * ratio).sqrt().clamp(max=width)
    high = (area / ratio).sqrt().clamp(max=height)
    return torch.stack([down * (height - high), right * (width - wide), high, wide], 1)


# --- view -----------------------------------------------------------------------------------------

# How images are shown: which part of each, at which size, in which colours.


@dataclass(frozen=True, kw_only=True)
class ImageView:
    """How images are shown.

    Attributes:
        shape: Channels, height and width of an image as it is given out.
        fits: Whether files have that height and width already, and are shown as a whole.
        share: The part of an image's shorter side that is shown otherwise, its middle.
        area: Images are brought to `shape` as `resize` does, by means over areas.
    """

    shape: tuple[int, int, int]
    fits: bool
    share: float = 1.0
    area: bool = False

    def pixels(
        self, content: bytes, name: str | Path, drawn: Tensor | None = None, smallest: float = 1.0
    ) -> np.ndarray:
        """Decode an image.

        Args:
            content: Of its file.
            name: Of its file, for messages.
            drawn: Numbers that decide which part is shown, a row of `draw`; None for the
                middle.
            smallest: Least share of the image's area that such a part has.

        Returns:
            uint8, ``shape``.

        Raises:
            DataError: If it is damaged, or should fit and does not; the message has the name.
        """
        channels, height, width = self.shape
        part = None if self.fits else self._middle
        if drawn is not None:
            part = partial(_draw_box, drawn, smallest)
        mode = "RGB" if channels == 3 else "L"
        return decode.pixels(content, name, mode, (height, width), part, self.area)

    def _middle(self, height: int, width: int) -> Box:
        """The largest part in the middle that has the ratio of `shape`, times `share`."""
        scale = self.share * min(height / self.shape[1], width / self.shape[2])
        high, wide = scale * self.shape[1], scale * self.shape[2]
        return (height - high) / 2, (width - wide) / 2, high, wide


def _draw_box(numbers: Tensor, smallest: float, height: int, width: int) -> Box:
    """The part of an image that some numbers decide."""
    top, left, high, wide = boxes(numbers[None], smallest, height, width)[0].tolist()
    return top, left, high, wide


# --- picture --------------------------------------------------------------------------------------

# A picture with 8 bits a channel and nothing transparent, upright; others are refused by name.


_GRAY = ("1", "L", "LA", "La")


def read(path: Path, *, gray: str | None = None) -> Tensor:
    """Read a picture whose values mean what a viewer shows.

    It is turned upright. A palette, CMYK and the like become RGB; an alpha channel that is opaque
    everywhere is left out.

    Args:
        path: Its file.
        grey: Why a grey picture is refused; None reads it.

    Returns:
        uint8, ``(3, height, width)``, or ``(1, height, width)`` of a grey picture.

    Raises:
        DataError: If the file cannot be read, is no image or damaged; has more than 8 bits a
            channel, or is transparent somewhere; or is grey where that is refused. The message
            names it and says what to do.
    """
    content = decode.read_image(path)
    image = decode.identify_image(io.BytesIO(content), path)
    decode.refuse_pages(image, path)
    mode = image.mode
    if mode.startswith(("I", "F")) or _deep_png(content):
        raise DataError(
            f"{path} has more than 8 bits a channel: convert it, for example with ImageMagick: "
            "magick FILE -depth 8 PNG24:FILE.png"
        )
    if gray and mode in _GRAY:
        raise DataError(
            f"{path} is {gray}: convert it to RGB, for example with ImageMagick: magick FILE "
            "-depth 8 PNG24:FILE.png"
        )
    with decode.refuse_damage(path):
        image = decode.load_upright(image)
        if "A" in mode or "a" in mode or "transparency" in image.info:
            image = image.convert("RGBA")
            lowest = image.getchannel("A").getextrema()[0]
            if isinstance(lowest, int | float) and lowest < 255:
                raise DataError(
                    f"{path} is transparent in places, and what lies behind is not known: remove "
                    "its alpha channel, for example with ImageMagick: magick FILE -background "
                    "black -alpha remove PNG24:FILE.png"
                )
        found = np.array(image.convert("L" if mode in _GRAY else "RGB"))
    pixels = found.reshape(*found.shape[:2], -1).transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(pixels))


def _deep_png(content: bytes) -> bool:
    """Whether it is a PNG file of 16 bits a channel, of which Pillow gives the upper 8 of RGB."""
    return re.match(rb"\x89PNG\r\n\x1a\n.{4}IHDR.{8}\x10", content, re.DOTALL) is not None


# --- image files ----------------------------------------------------------------------------------


MEMORY = 1 << 30
"""Bytes of pixels up to which a split is better kept in memory."""


@dataclass(frozen=True, kw_only=True)
class ImageFiles(ImageView):
    """Images with their classes, decoded on demand and shown as an `ImageView` says.

    Without a `crop`, a file always gives the same pixels: the middle of the image.

    Attributes:
        root: Folder of the files.
        names: Names of the files below it.
        targets: Classes, int64, ``(count,)``.
    """

    root: Path
    names: Sequence[str] = field(repr=False)
    targets: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Images, float32 in [0, 1], and targets of the samples at some positions.

        Raises:
            DataError: If a file cannot be read or is damaged; the message names it.
        """
        places = torch.arange(len(self))[index]
        return self.images(places) / 255, self.targets[index]

    def select(self, index: Tensor) -> ImageFiles:
        """The samples at some positions, in that order."""
        names = [self.names[place] for place in index.tolist()]
        return replace(self, names=names, targets=self.targets[index])

    def images(self, places: Tensor, drawn: Tensor | None = None, smallest: float = 1.0) -> Tensor:
        """Decode images, several at once.

        Args:
            places: Of the images, ``(count,)``.
            drawn: Numbers that decide which part of each is shown, of `draw`; None for what
                the split shows.
            smallest: Least share of an image's area that such a part has.

        Returns:
            uint8, ``(count, *shape)``.

        Raises:
            DataError: If a file cannot be read or is damaged; the message names it.
        """
        count = len(places)
        rows = [None] * count if drawn is None else drawn.unbind()
        names = [self.names[int(place)] for place in places.tolist()]
        found = torch.empty(count, *self.shape, dtype=torch.uint8)
        decoded = decode.in_threads(
            lambda k: self._decode(names[k], rows[k], smallest), range(count)
        )
        for place, image in enumerate(decoded):
            found[place] = torch.from_numpy(image)
        return found

    def decode_all(self) -> Split:
        """All images in memory, as uint8.

        Raises:
            DataError: If a file cannot be read or is damaged; the message names it.
        """
        images = torch.empty(len(self), *self.shape, dtype=torch.uint8)
        for place, image in enumerate(self._all()):
            images[place] = torch.from_numpy(image)
        return Split(images, self.targets)

    def check(self) -> None:
        """Decode every image and forget it, to find those that are damaged.

        Raises:
            DataError: If one is; the message names it.
        """
        for _ in self._all():
            pass

    @property
    def bytes(self) -> int:
        """Bytes of memory that the pixels of all images would take."""
        channels, height, width = self.shape
        return len(self) * channels * height * width

    def _all(self) -> Iterator[np.ndarray]:
        decoded = decode.in_threads(self._decode, self.names)
        return track(decoded, len(self), "Reading images")

    def _decode(self, name: str, drawn: Tensor | None = None, smallest: float = 1.0) -> np.ndarray:
        path = self.root / name
        return self.pixels(decode.read_image(path), path, drawn, smallest)
