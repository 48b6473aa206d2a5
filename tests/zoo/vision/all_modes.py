"""One picture in every mode that image files have, and files that are no images."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.append(str(Path(__file__).parents[2] / "helpers"))

from pictures import png  # pyright: ignore[reportMissingImports]

Writer = Callable[[Image.Image, Path], None]

ORIENTATION = 0x0112
TURNS = {3: "ROTATE_180", 5: "TRANSPOSE", 6: "ROTATE_90", 8: "ROTATE_270"}
"""What an image is stored as, by the orientation that its Exif tells."""


def mode(name: str) -> Writer:
    """As an image of a mode of Pillow's."""
    return lambda image, path: image.convert(name).save(path)


def palette(image: Image.Image, path: Path) -> None:
    """Numbers of at most 256 colours."""
    image.convert("RGB").quantize(256).save(path)


def deep_gray(image: Image.Image, path: Path) -> None:
    """Sixteen bits of grey."""
    Image.fromarray(257 * np.asarray(image.convert("L")).astype(np.uint16)).save(path)


def deep_rgb(image: Image.Image, path: Path) -> None:
    """Sixteen bits of each colour, which Pillow cannot write."""
    values = 257 * np.asarray(image.convert("RGB")).astype(">u2")
    path.write_bytes(png(values.tobytes(), image.width, image.height, bits=16, kind=2))


def cmyk(image: Image.Image, path: Path) -> None:
    """Four inks."""
    image.convert("RGB").convert("CMYK").save(path)


def turned(orientation: int) -> Writer:
    """Stored on its side or head, with the orientation in Exif."""

    def save(image: Image.Image, path: Path) -> None:
        exif = Image.Exif()
        exif[ORIENTATION] = orientation
        stored = image.convert("RGB").transpose(Image.Transpose[TURNS[orientation]])
        options = {"quality": 95} if path.suffix == ".jpg" else {}
        stored.save(path, exif=exif, **options)

    return save


EXACT: dict[str, tuple[str, Writer]] = {
    "rgb": (".png", mode("RGB")),
    "bmp": (".bmp", mode("RGB")),
    "grey": (".png", mode("L")),
    "grey-alpha": (".png", mode("LA")),
    "rgba": (".png", mode("RGBA")),
    "palette": (".png", palette),
    "gif": (".gif", palette),
    "deep-grey": (".png", deep_gray),
    "deep-grey-tiff": (".tif", deep_gray),
    "deep-rgb": (".png", deep_rgb),
    "cmyk": (".tif", cmyk),
    **{f"turned-{number}": (".png", turned(number)) for number in TURNS},
}
"""How to write a grey picture without loss: ending and writer, by the name of the mode."""

MODES = {
    **EXACT,
    "jpeg": (".jpg", mode("RGB")),
    "cmyk-jpeg": (".jpg", cmyk),
    "turned-jpeg": (".jpg", turned(6)),
    "one-bit": (".png", mode("1")),
}
"""All modes: those of `EXACT` and those that change values a little."""

SIZES = ((48, 64), (64, 48), (33, 57), (300, 200), (60, 80), (121, 90), (20, 24))
"""Height and width of the images of `write`."""


def noise(seed: int, size: tuple[int, int]) -> Image.Image:
    """A coarse pattern with some noise on it, RGB."""
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 200, (4, 5, 3)).astype(np.uint8)
    image = Image.fromarray(coarse).resize((size[1], size[0]), Image.Resampling.NEAREST)
    more = generator.integers(0, 56, (*size, 3)).astype(np.uint8)
    return Image.fromarray(np.asarray(image) + more)


def write(folder: Path, count: int, sizes: tuple[tuple[int, int], ...] = SIZES) -> list[Path]:
    """Write images of all modes and sizes in turn, and return them in order.

    All pairs of a mode and a size are among the first len(MODES) * len(sizes), the largest too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    modes, paths = list(MODES.items()), []
    for k in range(count):
        name, (suffix, save) = modes[k % len(modes)]
        path = folder / f"{k:04}-{name}{suffix}"
        save(noise(k, sizes[k % len(sizes)]), path)
        paths.append(path)
    return paths


def broken(folder: Path) -> list[Path]:
    """Write files that are called images, and are none that can be read."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / "whole.png"
    noise(0, (40, 50)).save(whole)
    content = whole.read_bytes()
    whole.unlink()
    contents = {
        "cut.png": content[: len(content) // 2],
        "empty.png": b"",
        "huge.png": png(b"", 60_000, 60_000, kind=2),
        "text.png": b"not an image\n" * 20,
        "zeros.jpg": bytes(1000),
    }
    for name, each in contents.items():
        (folder / name).write_bytes(each)
    return [folder / name for name in contents]
