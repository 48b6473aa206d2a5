"""Named signals: several of one kind, each of which is learned by a network of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np
import torch

from equilibria.run.data import registry
from equilibria.run.data.storage import DataError, require
from equilibria.words import nearest
from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.signal.data.files import of_frames, of_pixels, read_sound, square
from equilibria.zoo.signal.data.signal import Signal, checksum_of


@dataclass(frozen=True, kw_only=True)
class SignalSet:
    """Signals by name.

    Attributes:
        title: What tables call the set.
        signals: In an order that never changes.
        checksum: ``sha256:...`` over all values and what they mean.
    """

    title: str
    signals: tuple[Signal, ...] = field(repr=False)
    checksum: str

    @classmethod
    def of(cls, title: str, signals: Sequence[Signal]) -> Self:
        """A set of signals.

        Raises:
            ValueError: If there is none, or two have one name.
        """
        names = [each.name for each in signals]
        if not names or len({*names}) < len(names):
            raise ValueError(f"signals are called {names}: expected one or more different names")
        whole = checksum_of(*((each.name, each.field, each.values) for each in signals))
        return cls(title=title, signals=(*signals,), checksum=whole)

    def __len__(self) -> int:
        return len(self.signals)

    def __getitem__(self, name: int | str) -> Signal:
        """The signal at a place, or of a name.

        Raises:
            ValueError: If none has the name.
            IndexError: If there is no such place.
        """
        if isinstance(name, int):
            return self.signals[name]
        for each in self.signals:
            if each.name == name:
                return each
        raise ValueError(
            f"{self.title} has no {name!r}: choose from {', '.join(s.name for s in self.signals)}"
        )


# --- lettering ------------------------------------------------------------------------------------

# Generated images of words in many sizes and colours.


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


def read_lettering(
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
        of_pixels(_draw_words(size, channels, seed, number), f"text-{number + 1}")
        for number in range(count)
    ]
    return SignalSet.of(files.title, signals)


def _draw_words(size: int, channels: int, seed: int, number: int) -> torch.Tensor:
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path(), "fonts", "ttf")
    generator = np.random.default_rng((seed, number))
    colors = generator.integers(0, 256, (WORDS + 1, channels))
    picture = Image.new("RGB" if channels == 3 else "L", (size, size), _color(colors[0]))
    draw = ImageDraw.Draw(picture)
    for color in colors[1:]:
        # From a twentieth to a quarter of the side, small ones more often.
        height = max(6, round(size * 0.05 * 5 ** generator.random()))
        font = ImageFont.truetype(
            str(folder / f"{generator.choice(FONTS)}.ttf"),
            height,
            layout_engine=ImageFont.Layout.BASIC,
        )
        word = "".join(generator.choice([*LETTERS], generator.integers(2, 9)))
        x, y = generator.uniform(-0.1, 0.9, 2) * size
        draw.text((int(x), int(y)), word, fill=_color(color), font=font)
    pixels = np.atleast_3d(np.array(picture))
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def _color(values: np.ndarray) -> int | tuple[int, ...]:
    return int(values[0]) if len(values) == 1 else tuple(map(int, values))


TEXT_IMAGES = Entry(
    name="text-images",
    title="text images (generated)",
    read=read_lettering,
    remotes=(
        Remote(
            addresses=("matplotlib, its fonts DejaVu and STIX",),
            license="Bitstream Vera and OFL 1.1 for the fonts",
        ),
    ),
)


# --- photographs ----------------------------------------------------------------------------------

# Photographs that come with scikit-image: those whose licence is stated there, none downloaded.


STATED = {
    "astronaut": "public domain",
    "brick": "CC0",
    "camera": "CC0",
    "cat": "CC0",
    "clock": "public domain",
    "coffee": "CC0",
    "grass": "CC0",
    "gravel": "CC0",
    "hubble_deep_field": "public domain",
    "retina": "CC0",
    "rocket": "public domain",
}
"""Pictures in scikit-image's wheel, by its function, and the licence that its notes give."""

NAMES = ("astronaut", "brick", "camera", "cat", "coffee", "grass", "hubble_deep_field", "rocket")
"""Those that are read where nobody names others."""

GRAY = (0.299, 0.587, 0.114)
"""Share of red, green and blue in grey (ITU-R BT.601), as of Pillow."""


def read_photographs(
    files: Files, *, size: int | None = 128, names: Sequence[str] = NAMES, channels: int = 1
) -> SignalSet:
    """Photographs, the largest square in the middle of each.

    Args:
        files: Not asked for any.
        size: Height and width to which they are brought by means over areas; None for their own.
        names: Of `STATED`.
        channels: 1 for grey, 3 for RGB; a grey picture has three equal ones.

    Raises:
        ValueError: If a name is unknown, or a number impossible.
        DataError: If scikit-image is not installed.
    """
    if channels not in (1, 3):
        raise ValueError(f"channels is {channels}: expected 1 or 3")
    if size is not None and size < 2:
        raise ValueError(f"size is {size}: expected 2 pixels or more")
    for name in names:
        if name not in STATED:
            raise ValueError(f"there is no photograph {name!r}{nearest(name, STATED)}")
    bundled = require("skimage.data", "scikit-image", "reproduce", files.entry.title)
    signals = []
    for name in names:
        try:
            pixels = np.asarray(getattr(bundled, name)())
        except (OSError, ModuleNotFoundError) as error:  # a build without its pictures
            raise DataError(f"scikit-image's {name} is not installed: {error}") from None
        tensor = torch.from_numpy(np.atleast_3d(pixels).transpose(2, 0, 1).copy())
        if channels == 1 and len(tensor) == 3:
            gray = (tensor.double() * torch.tensor(GRAY)[:, None, None]).sum(0, keepdim=True)
            tensor = gray.round().to(torch.uint8)
        cut = square(tensor.expand(channels, -1, -1))
        signals.append(of_pixels(cut, name, None if size is None else (size, size)))
    return SignalSet.of(files.title, signals)


PHOTOGRAPHS = Entry(
    name="photographs",
    title="photographs of scikit-image",
    read=read_photographs,
    remotes=(Remote(addresses=("scikit-image, skimage.data",), license="CC0 and public domain"),),
)


# --- recording ------------------------------------------------------------------------------------

# Seven seconds of music: the recording that papers on coordinate networks fit.


def read_recording(
    files: Files, *, rate: int | None = None, start: float = 0.0, seconds: float | None = None
) -> SignalSet:
    """The recording, or a part of it; see `sound.read_sound`.

    Args:
        files: The recording.
        rate: Samples per second, such as 11,025; None for its own 44,100.
        start: Where the part begins, in seconds.
        seconds: How long it is; None for the rest.

    Raises:
        DataError: If it is missing, damaged or shorter.
    """
    return SignalSet.of(files.title, [read_sound(files.paths[0], rate, start, seconds)])


BACH = Entry(
    name="bach",
    title="Bach, 7 s",
    read=read_recording,
    remotes=(
        Remote(
            files=("gt_bach.wav",),
            addresses=("https://raw.githubusercontent.com/vsitzmann/siren/master/data/",),
            license="MIT",
            size="1.2 MB",
            inside=(".", "audio"),
        ),
    ),
)


# --- street ---------------------------------------------------------------------------------------

# A film of frames that a car's camera took, of the images of CamVid.


RATE = 1.0
"""Frames per second: those of CamVid that have masks are a second apart."""


def read_street(
    files: Files, *, size: Sequence[int] = (60, 80), count: int = 30, start: int = 62
) -> SignalSet:
    """Consecutive test frames of CamVid as a film, RGB.

    Args:
        files: Where CamVid is looked for.
        size: Height and width to which they are brought by means over areas.
        count: Frames, 2 or more.
        start: The first, of the 233 of the test part; those from 62 on are one drive.

    Raises:
        ValueError: If a number is impossible.
        DataError: If CamVid is missing or damaged, or has fewer frames.
    """
    if len(size) != 2 or min(size) < 2 or count < 2 or start < 0:
        raise ValueError(
            f"size is {list(size)}, count is {count} and start is {start}: expected a height and a "
            "width of 2 or more, 2 or more, and 0 or more"
        )
    found = registry.load("camvid", files.data_dir, files.may_download)
    if start + count > len(found.test):
        raise DataError(f"{found.title} has {len(found.test)} test frames, not {start + count}")
    name = f"frames {start} to {start + count - 1} of {found.title}"
    frames = [(Path(f"frame {k}"), found.test.image(k)) for k in range(start, start + count)]
    film = of_frames(frames, Path("street"), (size[0], size[1]), RATE)
    return SignalSet.of(name, [film])


STREET = Entry(
    name="street",
    title="street (frames of CamVid)",
    read=read_street,
    remotes=(Remote(addresses=("the data set camvid",), license="CC BY-NC 4.0, for research"),),
)
