"""A signal of a user's own file, by what the file is."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.storage import DataError, read_errors, replace_file, write_folder
from equilibria.zoo.io import image_files, sound, video
from equilibria.zoo.io.colors import color_png
from equilibria.zoo.io.decode import resize
from equilibria.zoo.io.naming import natural_key
from equilibria.zoo.signal.data import mesh
from equilibria.zoo.signal.data.field import SignalField
from equilibria.zoo.signal.data.shape import Shape, ShapeField, read_shape
from equilibria.zoo.signal.data.signal import Signal

# --- image ----------------------------------------------------------------------------------------

# Images: read from files with 8 bits a channel, written as PNG.


def read_image(path: str | os.PathLike[str], size: tuple[int, int] | None = None) -> Signal:
    """Read an image, grey or RGB, upright, 0 to 255 as -1 to 1.

    A palette and CMYK become RGB; an alpha channel that is opaque everywhere is left out.

    Args:
        path: A file that Pillow reads.
        size: Height and width to which it is brought by means over areas; None for its own.

    Raises:
        DataError: If the file cannot be read, is no image or damaged; has more than 8 bits a
            channel or is transparent somewhere; is constant, or has a side of one pixel.
    """
    path = Path(path)
    return of_pixels(image_files.read(path), path.name, size)


def of_pixels(pixels: Tensor, name: str, size: tuple[int, int] | None = None) -> Signal:
    """An image of pixels, uint8, ``(channels, height, width)``, perhaps at another size.

    Raises:
        DataError: If it is constant, or has a side of one pixel.
    """
    if size is not None:
        pixels = resize(pixels[None].float(), size)[0]
    values = pixels.permute(1, 2, 0)
    return Signal.of("image", values, name, low=0.0, high=255.0, bits=8)


def square(pixels: Tensor) -> Tensor:
    """The largest square in the middle of pixels, ``(channels, height, width)``."""
    side = min(pixels.shape[1:])
    top, left = ((length - side) // 2 for length in pixels.shape[1:])
    return pixels[:, top : top + side, left : left + side]


def pixels_of(values: Tensor) -> np.ndarray:
    """Values in [-1, 1], ``(..., channels)``, as pixels of 8 bits; what is outside is cut.

    Raises:
        DataError: If one is not finite.
    """
    values = values.detach().cpu().double()
    if not bool(values.isfinite().all()):
        raise DataError("a picture has values that are NaN or infinite: nothing is written")
    return ((values.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).numpy()


def png(values: Tensor) -> bytes:
    """Values in [-1, 1], ``(height, width, 1 or 3)``, as a PNG file.

    Raises:
        ValueError: If the shape is another.
        DataError: If a value is not finite.
    """
    if values.ndim != 3 or values.shape[2] not in (1, 3) or not values.numel():
        raise ValueError(
            f"values of the shape {tuple(values.shape)}: expected (height, width, 1 or 3)"
        )
    return color_png(_channels_first(values))


def write_image(path: str | os.PathLike[str], values: Tensor) -> None:
    """Write an image as PNG, whole or not at all.

    Args:
        path: Ends with ``.png``.
        values: In [-1, 1], ``(height, width, 1 or 3)``; what is outside is cut.

    Raises:
        ValueError: If the ending or the shape is another.
        DataError: If a value is not finite, or the file cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"images are written to .png files; got {path.name}")
    replace_file(path, png(values))


# --- sound ----------------------------------------------------------------------------------------

# Sounds: read with all of their channels, and written as WAV files.


def read_sound(
    path: str | os.PathLike[str],
    rate: int | None = None,
    start: float = 0.0,
    seconds: float | None = None,
) -> Signal:
    """Read a recording; its largest absolute value becomes 1.

    The released code divides by the largest value, so that a sound may reach below -1.

    Args:
        path: A file that libsndfile reads: WAV, FLAC, Ogg, MP3. Stereo has two channels.
        rate: Samples per second to which it is brought by a polyphase low-pass filter; None for
            its own.
        start: Where the part that is read begins, in seconds.
        seconds: How long it is; None for the rest.

    Raises:
        DataError: If it is no recording, or damaged; is constant or a single sample; or
            does not have that part.
    """
    path = Path(path)
    samples, own, bits = sound.read_channels(path)
    length = len(samples) / own
    stop = length if seconds is None else start + seconds
    if not 0 <= start < stop <= length + 0.5 / own:
        raise DataError(
            f"{path} is {length:g} s long: {start:g} to {stop:g} s is no part of it; set "
            "seconds to what there is, or to null for the rest"
        )
    part = samples[round(start * own) : round(stop * own)]
    if rate is not None and len(part) > 1:
        part = sound.resample(part, own, rate, path)
    return Signal.of("sound", part, path.name, rate=float(rate or own), bits=bits)


def write_sound(
    path: str | os.PathLike[str],
    values: Tensor,
    field: SignalField,
    rate: float | None = None,
    bits: Literal[16, 24] = 16,
) -> None:
    """Write a sound as WAV, whole or not at all, as loud as its file was.

    Args:
        path: Ends with ``.wav``.
        values: In [-1, 1], ``(samples, channels)``; what the file cannot hold is cut.
        field: Whose range the values have.
        rate: Samples per second; None for the field's own.
        bits: Of a sample in the file.

    Raises:
        ValueError: If the ending or the shape is another, a value is not finite, or the rate is no
            whole number.
        DataError: If the file cannot be written.
    """
    path = Path(path)
    rate = field.rate if rate is None else rate
    if path.suffix.lower() != ".wav":
        raise ValueError(f"sounds are written to .wav files; got {path.name}")
    if field.kind != "sound" or values.shape[1:] != (field.channels,):
        raise ValueError(
            f"values of the shape {tuple(values.shape)} of a {field.kind}: expected (samples, "
            f"{field.channels}) of a sound"
        )
    if rate is None or rate != round(rate) or not 1 <= rate < 2**32:
        raise ValueError(f"rate is {rate}: a WAV file has a whole number of samples per second")
    sound.write(path, field.restore(values), round(rate), bits)


# --- film -----------------------------------------------------------------------------------------

# Films: folders of images, animated images and videos, read as frames x rows x columns.


MEMORY = 1 << 30
"""Bytes of a film's values, float32, at most: 300 frames of 512 x 512 pixels take 944 MB."""


def read_film(
    path: str | os.PathLike[str], frames: slice | None = None, size: tuple[int, int] | None = None
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
    rate = None if path.is_dir() else video.rate_of(path)
    given = _folder(path) if path.is_dir() else ((path, each) for each in video.read(path))
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
        frame = pixels if size is None else resize(pixels[None].float(), size)[0]
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

    endings = set(Image.registered_extensions()) - video.ENDINGS
    with read_errors(path):
        inside = sorted(path.iterdir(), key=natural_key)
    images = [
        each
        for each in inside
        if each.suffix.lower() in endings and each.name[0] != "." and each.is_file()
    ]
    if not images:
        raise DataError(
            f"the folder {path} has no images: name one that holds the frames of a film"
        )
    return ((each, image_files.read(each)) for each in images)


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
        colors = values.expand(-1, -1, -1, 3)
        video.gif(content, (_channels_first(each) for each in colors), rate or 15.0)
        replace_file(path, content.getvalue())
    elif path.suffix:
        raise ValueError(f"films are written to .gif files or folders of .png; got {path.name}")
    else:
        write_folder(path, {f"{place:06}.png": png(each) for place, each in enumerate(values)})


def _channels_first(values: Tensor) -> np.ndarray:
    return np.ascontiguousarray(pixels_of(values).transpose(2, 0, 1))


# --- files ----------------------------------------------------------------------------------------


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
    with read_errors(path):
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty: {EXPECTED}")
    ending = path.suffix.lower()
    if ending in SOUNDS:
        return "sound"
    if ending in mesh.ENDINGS:
        return "shape"
    if ending in VIDEOS:
        return "film"
    if ending in video.ANIMATED:
        return "film" if video.frames_in(path) > 1 else "image"
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


def field_of(content: Mapping[str, Any]) -> SignalField | ShapeField:
    """Return what `SignalField.as_dict` or `ShapeField.as_dict` gave.

    Raises:
        ValueError: If it is anything else.
    """
    try:
        if content["kind"] == "shape":
            given = {name: each for name, each in content.items() if name != "kind"}
            return ShapeField(**{**given, "centre": tuple(map(float, content["centre"]))})
        return SignalField(**{**content, "shape": tuple(content["shape"])})
    except (TypeError, KeyError) as error:
        raise ValueError(f"no description of a signal ({error})") from None
