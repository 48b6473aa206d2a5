"""Folders of tiny images, a folder a class."""

import io
import struct
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, size: tuple[int, int] = (12, 12), mode: str = "RGB") -> Image.Image:
    """An image of noise, height x width, in a mode of Pillow's."""
    channels = {"L": (), "RGB": (3,), "RGBA": (4,)}[mode]
    noise = np.random.default_rng(seed).integers(0, 256, (*size, *channels))
    return Image.fromarray(noise.astype(np.uint8), mode)


def folder(
    root: Path,
    classes: dict[str, int],
    *,
    size: tuple[int, int] = (12, 12),
    mode: str = "RGB",
    suffix: str = "png",
) -> Path:
    """Write images, so many a class."""
    seed = 0
    for label, count in classes.items():
        (root / label).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            picture(seed, size, mode).save(root / label / f"{number:03}.{suffix}")
            seed += 1
    return root


def scenes(root: Path, pairs: Iterable[tuple[np.ndarray, np.ndarray]], classes: str | None) -> Path:
    """Write a folder of images and masks, by numbers of two digits, with a list of classes."""
    for name in ("images", "masks"):
        (root / name).mkdir(parents=True)
    if classes is not None:
        (root / "classes.txt").write_text(classes)
    for k, pair in enumerate(pairs):
        for name, each in zip(("images", "masks"), pair, strict=True):
            Image.fromarray(each.astype(np.uint8)).save(root / name / f"{k:02}.png")
    return root


def content(image: Image.Image, kind: str = "JPEG") -> bytes:
    """The bytes of an image file."""
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def png(pixels: bytes, width: int, height: int, *, bits: int = 8, kind: int = 0) -> bytes:
    """A PNG file by hand: what Pillow does not write, and what lies of its size.

    Args:
        pixels: packed, row by row; as many rows as the bytes make.
        width: of the header, in pixels.
        height: of the header.
        bits: of a channel.
        kind: 0 of grey, 2 of RGB, 4 of grey with alpha, 6 of RGB with alpha.
    """
    wide = -(-width * bits * {0: 1, 2: 3, 4: 2, 6: 4}[kind] // 8)
    rows = b"".join(b"\0" + pixels[k : k + wide] for k in range(0, len(pixels), wide))
    size = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    parts = ((b"IHDR", size), (b"IDAT", zlib.compress(rows, 1)), (b"IEND", b""))
    chunks = (
        struct.pack(">I", len(each)) + name + each + struct.pack(">I", zlib.crc32(name + each))
        for name, each in parts
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
