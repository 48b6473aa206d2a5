"""Videos of results: animated images by Pillow, other files by PyAV, the extra `video`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from equilibria import files
from equilibria.zoo.io import film
from equilibria.zoo.io.film import read

__all__ = ["WRITTEN", "check_written", "read", "write"]

WRITTEN = (".gif", ".mp4")
"""Endings of videos that are written."""


def check_written(path: Path) -> None:
    """Refuse a video that could not be written, before there are any frames of it.

    Raises:
        ValueError: it ends with none of `WRITTEN`.
        DataError: the extra `video` is not installed, which all but .gif need.
    """
    if path.suffix.lower() not in WRITTEN:
        raise ValueError(f"a video is written to {' or '.join(WRITTEN)} files; got {path.name}")
    if path.suffix.lower() != ".gif":
        film.av(path, "writing")


def write(path: Path, frames: Iterable[np.ndarray], rate: float = 15.0) -> int:
    """Write a video, whole or not at all, and return how many frames it has.

    Args:
        path: ends with .gif, which repeats for ever, or with .mp4 (H.264).
        frames: uint8, (3, height, width), of one size: those of another size than the first are
            left out.
        rate: frames per second.

    Raises:
        ValueError, DataError: see `check_written`; or there is no frame.
    """
    check_written(path)
    given = iter(frames)
    if (first := next(given, None)) is None:
        raise ValueError(f"there is no frame to write to {path}")
    count = 0

    def alike() -> Iterator[np.ndarray]:
        nonlocal count
        count = 1
        yield first
        for each in given:
            if each.shape == first.shape:
                count += 1
                yield each

    if path.suffix.lower() == ".gif":
        files.write(path, lambda file: film.gif(file, alike(), rate))
    else:
        av = film.av(path, "writing")
        files.write(path, lambda file: _mp4(av, file, alike(), rate))
    return count


def _mp4(av: Any, file: Any, frames: Iterator[np.ndarray], rate: float) -> None:
    with av.open(file, "w", format="mp4") as container:
        stream: Any = None
        for pixels in frames:
            # H.264 in 4:2:0 has an even height and width.
            height, width = (side - side % 2 for side in pixels.shape[1:])
            if stream is None:
                stream = container.add_stream(
                    "libx264", rate=Fraction(rate).limit_denominator(1000)
                )
                stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            picture = np.ascontiguousarray(pixels[:, :height, :width].transpose(1, 2, 0))
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
