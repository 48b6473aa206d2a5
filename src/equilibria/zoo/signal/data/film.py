"""Films: folders of images, animated images and videos, read as frames x rows x columns."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.errors import DataError, reading
from equilibria.run.data.replace import replace_file, write_folder
from equilibria.zoo.io import film, picture
from equilibria.zoo.io.natural import natural
from equilibria.zoo.io.resize import resized
from equilibria.zoo.signal.data.image import pixels_of, png
from equilibria.zoo.signal.data.signal import Signal

__all__ = ["MEMORY", "of_frames", "read_film", "write_film"]

MEMORY = 1 << 30
"""Bytes of a film's values, float32, at most: 300 frames of 512 x 512 pixels take 944 MB."""


def read_film(
    path: str | os.PathLike[str],
    frames: slice | None = None,
    size: tuple[int, int] | None = None,
) -> Signal:
    """Read a film, 0 to 255 as -1 to 1.

    Args:
        path: A folder of images, in natural order (9 before 10), an animated image, or a video,
            for which PyAV is needed, the extra ``video``.
        frames: Those that are read, such as ``slice(0, 30)``; None for all.
        size: Height and width to which they are brought by means over areas; None for their own.

    Raises:
        DataError: If it cannot be read or is damaged; has less than two frames, or frames of
            several sizes or channels, or too many; or is constant. The message names the file.
    """
    path = Path(path)
    rate = None if path.is_dir() else film.rate_of(path)
    given = _folder(path) if path.is_dir() else ((path, each) for each in film.read(path))
    chosen = slice(None) if frames is None else frames
    if any(n is not None and n < 0 for n in (chosen.start, chosen.stop, chosen.step)):
        raise DataError(f"frames {chosen.start}:{chosen.stop}:{chosen.step}: expected 0 or more")
    step = chosen.step or 1
    rate = rate if rate is None else rate / step
    return of_frames(islice(given, chosen.start, chosen.stop, step), path, size, rate)


def of_frames(
    frames: Iterator[tuple[Path, Tensor]] | list[tuple[Path, Tensor]],
    name: Path,
    size: tuple[int, int] | None = None,
    rate: float | None = None,
) -> Signal:
    """A film of frames, uint8, ``(channels, height, width)``, each with the file it is from.

    Raises:
        DataError: See `read_film`.
    """
    found: list[Tensor] = []
    first: tuple[Path, tuple[int, ...]] | None = None
    taken = 0
    for place, pixels in frames:
        shape = tuple(pixels.shape)
        first = first or (place, shape)
        if shape != first[1]:
            raise DataError(
                f"{place} has {_size(shape)} and {first[0]} has {_size(first[1])}: the frames of a "
                "film have one size"
            )
        frame = pixels if size is None else resized(pixels[None].float(), size)[0]
        taken += 4 * frame.numel()
        if taken > MEMORY:
            raise DataError(
                f"{name} takes more than {MEMORY:,} bytes of memory: read fewer frames, or smaller "
                "ones"
            )
        found.append(frame)
    if not found:
        raise DataError(f"{name} has no frames: a film has at least 2")
    values = torch.stack(found).permute(0, 2, 3, 1)
    return Signal.of("film", values, name.name, low=0.0, high=255.0, rate=rate, bits=8)


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} x {shape[2]} pixels {'in grey' if shape[0] == 1 else 'in colour'}"


def _folder(path: Path) -> Iterator[tuple[Path, Tensor]]:
    from PIL import Image

    endings = set(Image.registered_extensions()) - film.ENDINGS
    with reading(path):
        inside = sorted(path.iterdir(), key=natural)
    images = [
        each
        for each in inside
        if each.suffix.lower() in endings and each.name[0] != "." and each.is_file()
    ]
    if not images:
        raise DataError(
            f"the folder {path} has no images: name one that holds the frames of a film"
        )
    return ((each, picture.read(each)) for each in images)


def write_film(path: str | os.PathLike[str], values: Tensor, rate: float | None = None) -> None:
    """Write a film as a folder of PNG files or as an animated GIF, whole or not at all.

    Args:
        path: Ends with ``.gif``, or is a new folder, whose files are ``000000.png`` and so on.
        values: In [-1, 1], ``(frames, height, width, 1 or 3)``; what is outside is cut.
        rate: Frames per second of a GIF; None for 15.

    Raises:
        ValueError: If the ending or the shape is another.
        DataError: If a value is not finite, the folder exists, or it cannot be written.
    """
    path = Path(path)
    if values.ndim != 4 or values.shape[3] not in (1, 3) or not values.numel():
        raise ValueError(
            f"values of the shape {tuple(values.shape)}: expected (frames, height, width, 1 or 3)"
        )
    if path.suffix.lower() == ".gif":
        content = io.BytesIO()
        colours = values.expand(-1, -1, -1, 3)
        film.gif(content, (_channels_first(each) for each in colours), rate or 15.0)
        replace_file(path, content.getvalue())
    elif path.suffix:
        raise ValueError(f"films are written to .gif files or folders of .png; got {path.name}")
    else:
        write_folder(path, {f"{place:06}.png": png(each) for place, each in enumerate(values)})


def _channels_first(values: Tensor) -> np.ndarray:
    return np.ascontiguousarray(pixels_of(values).transpose(2, 0, 1))
