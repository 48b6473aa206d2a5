"""Images with masks, decoded on demand or kept in memory."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.storage import DataError, open_file, read_errors, track
from equilibria.words import others
from equilibria.zoo.io import decode, headers, remote
from equilibria.zoo.io.headers import Header
from equilibria.zoo.io.image_files import MEMORY

VOID = 255
"""What a mask has where a pixel has no class, or none that counts."""

Size = tuple[int, int]
"""Height and width, in pixels."""

Numbers = np.ndarray | Callable[[np.ndarray, str], np.ndarray]
"""What the values of masks stand for; see `Encoded`."""


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
    source: Kept | Encoded = field(repr=False)
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

    def decode_all(self) -> MaskedImages:
        """The same in memory, where that takes no more than `MEMORY`; otherwise itself.

        Raises:
            DataError: If a file cannot be read or is damaged; the message names it.
        """
        if isinstance(self.source, Kept) or self.bytes > MEMORY:
            return self
        pairs = decode.in_threads(lambda k: (self.image(k), self.mask(k)), range(len(self)))
        images, masks = zip(*track(pairs, len(self), "Reading images"), strict=True)
        return replace(self, source=Kept(images, masks), places=range(len(self)))


@dataclass(frozen=True)
class Kept:
    """Images and masks in memory, uint8: ``(channels, height, width)`` and ``(height, width)``."""

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
        stored: Height and width that they have.
        size: Height and width that images and masks are given out in; None for those they have.
        numbers: The class, or `VOID`, that each value of a mask stands for, int16 ``(256,)``, -1
            for a value that stands for nothing; or a function of the pixels of a mask, ``(height,
            width)`` or ``(height, width, 3)``, and its name.
    """

    read: Callable[[str], bytes]
    images: Sequence[str]
    masks: Sequence[str]
    mode: str
    stored: Sequence[Size]
    size: Size | None
    numbers: Numbers

    def whole(self) -> MaskedImages:
        """All images, in the order of their files."""
        return MaskedImages(
            names=[Path(name).stem for name in self.images],
            sizes=[self.size or each for each in self.stored],
            channels=3 if self.mode == "RGB" else 1,
            source=self,
            places=range(len(self.images)),
        )

    def image(self, place: int) -> Tensor:
        """Return an image, interpolated linearly, over as many pixels as one covers."""
        name, size = self.images[place], self.size or self.stored[place]
        same = size == self.stored[place]
        part = None if same else (lambda height, width: (0.0, 0.0, float(height), float(width)))
        pixels = decode.pixels(self.read(name), name, self.mode, size, part)
        return torch.from_numpy(np.ascontiguousarray(pixels))

    def mask(self, place: int) -> Tensor:
        """Return a mask; in another size, of the nearest pixels.

        Raises:
            DataError: If it is damaged, has another size than its image, or a value that stands for
                nothing.
        """
        name = self.masks[place]
        values = mask_pixels(self.read(name), name)
        high, wide = self.stored[place]
        if values.shape[:2] != (high, wide):
            raise DataError(
                f"{name} has {values.shape[0]} x {values.shape[1]} pixels and its image "
                f"{self.images[place]} has {high} x {wide}: a mask has the size of its image"
            )
        of = self.numbers
        classes = of(values, name) if callable(of) else look_up_classes(values, of, name)
        if self.size is not None:
            rows, columns = map(nearest, classes.shape, self.size)
            classes = classes[rows[:, None], columns]
        return torch.from_numpy(np.ascontiguousarray(classes))


def look_up_classes(values: np.ndarray, numbers: np.ndarray, name: str) -> np.ndarray:
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
    image = decode.identify_image(io.BytesIO(content), name)
    step = next((_STEPS[str(t[3])] for t in getattr(image, "tile", ()) if str(t[3]) in _STEPS), 1)
    if image.mode not in ("P", "L", "1", "RGB"):
        raise DataError(
            f"{name} is a mask of mode {image.mode}: expected a PNG with 8 bits per pixel, grey or "
            "of palette colours, whose numbers are the classes"
        )
    with decode.refuse_damage(name):
        found = np.asarray(decode.load_upright(image))
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
        colors: Red, green and blue of each class, 0 to 255, for pictures of masks.
        checksum: ``sha256:...`` over all that is in the files, or, where there are very many, over
            their names and lengths.
        values: The value of each class in the files of masks; empty for 0, 1, ...
    """

    title: str
    train: MaskedImages
    test: MaskedImages
    valid: MaskedImages | None
    labels: tuple[str, ...]
    colors: tuple[tuple[int, int, int], ...]
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
    colors: list[tuple[int, int, int]] = []
    for number in range(count):
        channels = [0, 0, 0]
        for place in range(8):
            bits = number >> (3 * place)
            for channel in range(3):
                channels[channel] |= (bits >> channel & 1) << (7 - place)
        colors.append((channels[0], channels[1], channels[2]))
    return tuple(colors)


# --- checked --------------------------------------------------------------------------------------

# Images and masks in files, looked at once before anything is learned from them.


# A part of the name of every file in the cache: another check must not take this one's word.
_FORMAT = 2


def content(name: str) -> bytes:
    """The bytes of a file.

    Raises:
        DataError: If it cannot be read, or is no regular file.
    """
    with read_errors(name), open_file(Path(name)) as file:
        return file.read()


def check_sizes(source: Encoded, masks: Sequence[Header]) -> None:
    """Raise DataError if a mask has another size than its image, by its header."""
    for image, mask, size, header in zip(
        source.images, source.masks, source.stored, masks, strict=True
    ):
        if header[:2] != size:
            raise DataError(
                f"{mask} has {header.height} x {header.width} pixels (height x width) and its "
                f"image {image} has {size[0]} x {size[1]}: a mask must have the size of its "
                "image, once both are turned upright by their Exif orientation"
            )


def counts(source: Encoded, key: str) -> np.ndarray:
    """How many pixels of each class every mask has: every file is decoded for it.

    The numbers are kept in the user's cache, so that the same files are decoded once only.

    Args:
        source: The files, in the size that they have.
        key: Of all that is in the files, and of what values stand for.

    Returns:
        int64, ``(count, 256)``.

    Raises:
        DataError: If a file cannot be read or is damaged, or a mask has a value that stands for
            nothing; the message names it.
    """

    def of(place: int) -> np.ndarray:
        source.image(place)
        return np.bincount(source.mask(place).numpy().ravel(), minlength=256)

    def make() -> dict[str, torch.Tensor]:
        found = decode.in_threads(of, range(len(source.images)))
        rows = list(track(found, len(source.images), "Looking at images and masks"))
        return {"counts": torch.from_numpy(np.stack(rows))}

    return remote.cache_tensors(f"images/masks-{_FORMAT}-{key[:24]}", make)["counts"].numpy()


# --- listed ---------------------------------------------------------------------------------------

# Images and masks of a published data set, by the names of their files.


Pairs = Sequence[tuple[str, str]]
"""Names of images with those of their masks, below one folder."""


def check_rgb(channels: int | None, title: str) -> None:
    """Raise ValueError if other channels are asked for than the 3 that a data set has."""
    if channels not in (None, 3):
        raise ValueError(f"channels is {channels}, and the images of {title} are RGB: 3, or null")


def read_listed(
    title: str,
    root: Path,
    splits: Mapping[str, Pairs],
    *,
    size: Size | None,
    numbers: Numbers,
    meaning: bytes = b"",
    labels: tuple[str, ...],
    colors: tuple[tuple[int, int, int], ...],
) -> SegmentationSet:
    """Return a data set of RGB images, on disk until they are used.

    Each file is decoded once, the first time that these files are seen.

    Args:
        title: Its name in tables.
        root: Folder of the files.
        splits: Names by split: "train", "val" and "test", or without the last: then the validation
            images are the test images.
        size: Height and width that images and masks are brought to; None for those they have.
        numbers: As `Encoded` takes it.
        meaning: What a function of `numbers` depends on, for the checksum.
        labels: Names of the classes.
        colors: Of the classes.

    Raises:
        DataError: If a file is missing or damaged, a mask has another size than its image, or a
            value that stands for nothing; the message names it.
    """
    names = [name for pairs in splits.values() for name, _ in pairs]
    masks = [name for pairs in splits.values() for _, name in pairs]
    if lacking := [name for name in (*names, *masks) if not (root / name).is_file()]:
        raise DataError(
            f"{root / lacking[0]} is missing{others(lacking)}: unpack the data set again"
        )
    scanned, checksum = headers.scan(root, names)
    of_masks, mask_checksum = headers.scan(root, masks)
    table = b"" if callable(numbers) else numbers.tobytes()
    total = hashlib.sha256(f"{checksum}{mask_checksum}".encode() + meaning + table).hexdigest()
    source = Encoded(
        read=content,
        images=[str(root / name) for name in names],
        masks=[str(root / name) for name in masks],
        mode="RGB",
        stored=[header[:2] for header in scanned],
        size=size,
        numbers=numbers,
    )
    check_sizes(source, of_masks)
    counts(replace(source, size=None), total)
    whole, lengths = source.whole(), [len(pairs) for pairs in splits.values()]
    parts = torch.arange(len(names)).split(lengths)
    found = {split: whole.select(part) for split, part in zip(splits, parts, strict=True)}
    return SegmentationSet(
        title=title,
        train=found["train"],
        test=found["test" if "test" in found else "val"],
        valid=found.get("val") if "test" in found else None,
        labels=labels,
        colors=colors,
        checksum=f"sha256:{total}",
    )
