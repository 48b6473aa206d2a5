"""Generated images of words in many sizes and colours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.signal.data.image import of_pixels
from equilibria.zoo.signal.data.sets import SignalSet

__all__ = ["TEXT_IMAGES"]

FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansMono",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
    "DejaVuSerif-Italic",
    "STIXGeneral",
)
"""Fonts that come with matplotlib."""

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"

WORDS = 24
"""Words of an image."""

SMALLEST = 16
"""Pixels of an image's side, at least."""


def read(
    files: Files, *, size: int = 128, count: int = 8, seed: int = 0, channels: int = 3
) -> SignalSet:
    """Images of random words, in random sizes, fonts, colours and places, on a plain ground.

    An image is a function of the seed, its number and its size, and of the version of FreeType,
    which rounds edges in its own way: the checksum says whether two machines drew the same. The
    idea is that of the published text images, which are 512 pixels wide.

    Args:
        files: Not asked for any.
        size: Height and width in pixels.
        count: Images.
        seed: Of all of them.
        channels: 1 for grey, 3 for RGB.

    Raises:
        ValueError: If a number is impossible.

    papers: Tancik et al. 2020, Fourier Features, supplement.
    """
    if size < SMALLEST or count < 1 or seed < 0 or channels not in (1, 3):
        raise ValueError(
            f"size is {size}, count is {count}, seed is {seed} and channels is {channels}: "
            f"expected {SMALLEST} or more, 1 or more, 0 or more, and 1 or 3"
        )
    signals = [
        of_pixels(_drawn(size, channels, seed, number), f"text-{number + 1}")
        for number in range(count)
    ]
    return SignalSet.of(files.title, signals)


def _drawn(size: int, channels: int, seed: int, number: int) -> torch.Tensor:
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    generator = np.random.default_rng((seed, number))
    colours = generator.integers(0, 256, (WORDS + 1, channels))
    picture = Image.new("RGB" if channels == 3 else "L", (size, size), _colour(colours[0]))
    draw = ImageDraw.Draw(picture)
    for colour in colours[1:]:
        # From a twentieth to a quarter of the side, small ones more often.
        height = max(6, round(size * 0.05 * 5 ** generator.random()))
        font = ImageFont.truetype(
            str(folder / f"{generator.choice(FONTS)}.ttf"),
            height,
            layout_engine=ImageFont.Layout.BASIC,
        )
        word = "".join(generator.choice([*LETTERS], generator.integers(2, 9)))
        x, y = generator.uniform(-0.1, 0.9, 2) * size
        draw.text((int(x), int(y)), word, fill=_colour(colour), font=font)
    pixels = np.atleast_3d(np.array(picture))
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def _colour(values: np.ndarray) -> int | tuple[int, ...]:
    return int(values[0]) if len(values) == 1 else tuple(map(int, values))


TEXT_IMAGES = Entry(
    name="text-images",
    title="text images (generated)",
    read=read,
    remotes=(
        Remote(
            files=(),
            addresses=("matplotlib, its fonts DejaVu and STIX",),
            licence="Bitstream Vera and OFL 1.1 for the fonts",
        ),
    ),
)
