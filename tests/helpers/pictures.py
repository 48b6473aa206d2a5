"""Folders of tiny images, a folder a class."""

import io
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


def content(image: Image.Image, kind: str = "JPEG") -> bytes:
    """The bytes of an image file."""
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()
