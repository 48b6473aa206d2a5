"""A signal of a user's own file, by what the file is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equilibria.run.data.errors import DataError, reading
from equilibria.zoo.io import film
from equilibria.zoo.signal.data import mesh
from equilibria.zoo.signal.data.field import Field
from equilibria.zoo.signal.data.film import read_film
from equilibria.zoo.signal.data.image import read_image
from equilibria.zoo.signal.data.shape import Shape, ShapeField, read_shape
from equilibria.zoo.signal.data.signal import Signal
from equilibria.zoo.signal.data.sound import read_sound

__all__ = ["EXPECTED", "field_of", "kind_of", "read"]

VIDEOS = (".avi", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".webm")
"""Endings of videos that PyAV reads."""

SOUNDS = (".aac", ".aif", ".aiff", ".flac", ".m4a", ".mp3", ".ogg", ".opus", ".wav")
"""Endings of sounds; libsndfile refuses some of them."""

EXPECTED = (
    "expected an image, a recording, a video, an animated image, a folder of frames, or a closed "
    f"mesh ({', '.join(mesh.ENDINGS)})"
)


def kind_of(path: str | os.PathLike[str]) -> str:
    """Return ``"sound"``, ``"image"``, ``"film"`` or ``"shape"``, by the name and first bytes.

    Raises:
        DataError: If there is no such file, it is empty, or of no known format.
    """
    from PIL import Image

    path = Path(path)
    if path.is_dir():
        return "film"
    with reading(path):
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty: {EXPECTED}")
    ending = path.suffix.lower()
    if ending in SOUNDS:
        return "sound"
    if ending in mesh.ENDINGS:
        return "shape"
    if ending in VIDEOS:
        return "film"
    if ending in film.ANIMATED:
        return "film" if film.frames_in(path) > 1 else "image"
    if ending in Image.registered_extensions():
        return "image"
    raise DataError(f"{path} has no known format ('{ending}'): {EXPECTED}")


def read(path: str | os.PathLike[str]) -> Signal | Shape:
    """Read a signal as a whole; see `read_image`, `read_sound`, `read_film` and `read_shape`.

    Raises:
        DataError: If it is of no known format, cannot be read, is damaged, or is no signal: see
            the functions. The message names the file.
    """
    path = Path(path).expanduser()
    readers = {"sound": read_sound, "image": read_image, "film": read_film, "shape": read_shape}
    return readers[kind_of(path)](path)


def field_of(content: Mapping[str, Any]) -> Field | ShapeField:
    """Return what `Field.as_dict` or `ShapeField.as_dict` gave.

    Raises:
        ValueError: If it is anything else.
    """
    if not isinstance(content, Mapping):
        raise ValueError(f"no description of a signal: {content!r}")
    kind = content.get("kind")
    return ShapeField.from_dict(content) if kind == "shape" else Field.from_dict(content)
