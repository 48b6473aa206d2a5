"""Photographs that come with scikit-image: those whose licence is stated there, none downloaded."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from equilibria.run.data.errors import DataError
from equilibria.run.data.extras import needed
from equilibria.words import nearest
from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.signal.data.image import of_pixels, square
from equilibria.zoo.signal.data.sets import SignalSet

__all__ = ["NAMES", "PHOTOGRAPHS", "STATED"]

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

GREY = (0.299, 0.587, 0.114)
"""Share of red, green and blue in grey (ITU-R BT.601), as of Pillow."""


def read(
    files: Files,
    *,
    size: int | None = 128,
    names: Sequence[str] = NAMES,
    channels: int = 1,
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
    bundled = needed("skimage.data", "scikit-image", "reproduce", files.entry.title)
    signals = []
    for name in names:
        try:
            pixels = np.asarray(getattr(bundled, name)())
        except (OSError, ModuleNotFoundError) as error:  # a build without its pictures
            raise DataError(f"scikit-image's {name} is not installed: {error}") from None
        tensor = torch.from_numpy(np.atleast_3d(pixels).transpose(2, 0, 1).copy())
        if channels == 1 and len(tensor) == 3:
            grey = (tensor.double() * torch.tensor(GREY)[:, None, None]).sum(0, keepdim=True)
            tensor = grey.round().to(torch.uint8)
        cut = square(tensor.expand(channels, -1, -1))
        signals.append(of_pixels(cut, name, None if size is None else (size, size)))
    return SignalSet.of(files.title, signals)


PHOTOGRAPHS = Entry(
    name="photographs",
    title="photographs of scikit-image",
    read=read,
    remotes=(
        Remote(
            files=(),
            addresses=("scikit-image, skimage.data",),
            licence="CC0 and public domain",
        ),
    ),
)
