"""Sounds: read with all of their channels, and written as WAV files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from torch import Tensor

from equilibria.run.data.errors import DataError
from equilibria.zoo.io import recordings, wav
from equilibria.zoo.signal.data.field import Field
from equilibria.zoo.signal.data.signal import Signal

__all__ = ["read_sound", "write_sound"]


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
    samples, own, bits = wav.read_channels(path)
    length = len(samples) / own
    stop = length if seconds is None else start + seconds
    if not 0 <= start < stop <= length + 0.5 / own:
        raise DataError(
            f"{path} is {length:g} s long: {start:g} to {stop:g} s is no part of it; set "
            "seconds to what there is, or to null for the rest"
        )
    part = samples[round(start * own) : round(stop * own)]
    if rate is not None and len(part) > 1:
        part = recordings.resampled(part, own, rate, path)
    return Signal.of("sound", part, path.name, rate=float(rate or own), bits=bits)


def write_sound(
    path: str | os.PathLike[str],
    values: Tensor,
    field: Field,
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
    wav.write(path, field.restored(values), round(rate), bits)
