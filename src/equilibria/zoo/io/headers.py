"""What the first bytes of image files say, before any pixel is read."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from equilibria.run.data.storage import DataError, read_errors, track
from equilibria.zoo.io import decode

if TYPE_CHECKING:
    from PIL.Image import Image

# Up to so many files are read as a whole at the start: for their checksum, and for what is damaged.
SMALL = 20_000

CHANNELS = {"RGB": 3, "L": 1}
"""Modes that are read as they are, and their channels."""

_WORDS = {
    "1": "black and white",
    "L": "grey",
    "LA": "grey with an alpha channel",
    "La": "grey with an alpha channel",
    "P": "of palette colours",
    "PA": "of palette colours with an alpha channel",
    "RGB": "RGB",
    "RGBA": "RGB with an alpha channel",
    "RGBa": "RGB with an alpha channel",
    "CMYK": "CMYK",
}


class Header(NamedTuple):
    """One image: pixels down and across, as a viewer shows it, and Pillow's word for its colours.

    ``;16`` after the mode means 16 bits per channel.
    """

    height: int
    width: int
    mode: str


def scan(root: Path, names: Sequence[str]) -> tuple[list[Header], str]:
    """Read the headers of all files.

    Args:
        root: Folder of the files.
        names: Their names below it.

    Returns:
        One header per file, and ``sha256:...`` over names and lengths of the files, and, if there
        are no more than `SMALL`, over their bytes.

    Raises:
        DataError: If a file cannot be read or is not an image; the message names it.
    """
    whole = len(names) <= SMALL
    reader = decode.in_threads(lambda name: _header(root / name, whole), names)
    headers: list[Header] = []
    total = hashlib.sha256()
    for name, (header, key) in zip(
        names, track(reader, len(names), "Looking at images"), strict=True
    ):
        headers.append(header)
        total.update(f"{name}\0{key}\n".encode("utf-8", "surrogateescape"))
    return headers, f"sha256:{total.hexdigest()}"


def channels_of(root: Path, names: Sequence[str], headers: Sequence[Header]) -> int:
    """Return how many channels all of the images have: 3 of RGB, 1 of grey.

    Raises:
        DataError: If they differ, or one is neither RGB nor grey.
    """
    check_depth(root, names, headers)
    modes = Counter(header.mode for header in headers)
    usual, count = modes.most_common(1)[0]
    if count == len(headers) and usual in CHANNELS:
        return CHANNELS[usual]
    usual = usual if usual in CHANNELS else "RGB"
    place = next(k for k, header in enumerate(headers) if header.mode != usual)
    odd = headers[place].mode
    others = (
        f"{modes[usual]:,} of {len(headers):,} images are {_WORDS[usual]} (mode {usual})"
        if modes[usual]
        else "images must be RGB or grey"
    )
    raise DataError(
        f"{root / names[place]} is {_WORDS.get(odd, 'of other colours')} (mode {odd}), and "
        f"{others}. Convert it, in Python: Image.open(path).convert({usual!r}).save(path); or "
        "convert every image as it is read, with task.channels: 3 (RGB) or 1 (grey)"
    )


def check_depth(root: Path, names: Sequence[str], headers: Sequence[Header]) -> None:
    """Raise DataError if an image has more than 8 bits per channel: its white is unknown."""
    for name, header in zip(names, headers, strict=True):
        refuse_deep(header, root / name)


def refuse_deep(header: Header, name: str | Path) -> None:
    """Raise DataError, with a file's name, if its image has more than 8 bits per channel."""
    if header.mode[:1] in ("I", "F") or header.mode.endswith(";16"):
        bits = 16 if "16" in header.mode else 32
        raise DataError(
            f"{name} has {bits} bits per channel (mode {header.mode.split(';')[0]}), "
            "and images must have 8: convert it, so that white is 255, for example with "
            "ImageMagick: magick FILE -depth 8 FILE"
        )


def size_of(root: Path, names: Sequence[str], headers: Sequence[Header]) -> tuple[int, int]:
    """Return height and width that all images have.

    Raises:
        DataError: If they differ; the message names two that do.
    """
    first = headers[0]
    for name, header in zip(names, headers, strict=True):
        if header[:2] != first[:2]:
            raise DataError(
                f"the images differ in size: {root / names[0]} has {first.height} x {first.width} "
                f"pixels and {root / name} has {header.height} x {header.width}. Resize all to one "
                "size, for example with --task.size 64"
            )
    return first.height, first.width


def _header(path: Path, whole: bool) -> tuple[Header, str]:
    """The header of a file, and what its checksum is made of."""
    with decode.open_image(path) as file, read_errors(path):
        image = decode.identify_image(file, path)
        decode.refuse_pages(image, path)
        read = read_header(image)
        if not whole:
            return read, str(path.stat().st_size)
        file.seek(0)
        return read, hashlib.file_digest(file, "sha256").hexdigest()


def read_header(image: Image) -> Header:
    """The header of an image that is open and not decoded."""
    width, height = image.size
    if decode.is_on_side(image):
        width, height = height, width
    # Pillow reads colours of 16 bits as those of 8 without a word; the decoder's arguments tell.
    deep = any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))
    return Header(height, width, f"{image.mode};16" if deep else image.mode)
