"""Recordings of sound as sequences of log-mel features."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from equilibria.run.data.errors import DataError
from equilibria.zoo.io import mel, wav

CHANNELS = tuple(f"log-mel {number}" for number in range(1, mel.FILTERS + 1))
"""What the features are called, from low to high frequencies."""

RATES = (1_000, 768_000)
"""Lowest and highest rate of a recording, in hertz."""


SUFFIXES = (".wav", ".flac", ".ogg", ".aif", ".aiff")
"""Of recordings that are read as features."""


def features(path: Path, channel: int | None = None) -> Tensor:
    """The log-mel features of a recording of any rate and length, ``(time, 32)``, float32.

    Args:
        path: The file.
        channel: Of the recording, counted from 1; None for the mean of all.

    Raises:
        DataError: If it is no recording, is damaged, has a rate that is not within `RATES`, or
            no such channel.
    """
    return mel.log_mel(samples(*wav.read(path, channel), path))


def samples(wave: Tensor, rate: int, name: str | Path) -> Tensor:
    """A recording at 16 kHz, by a polyphase filter where it has another rate.

    Args:
        wave: The recording, ``(samples,)``.
        rate: Its samples per second.
        name: Of its file, for messages.

    Raises:
        DataError: If the rate is not within `RATES`.
    """
    return resampled(wave, rate, mel.RATE, name)


def resampled(wave: Tensor, rate: int, new: int, name: str | Path) -> Tensor:
    """A recording at another rate, by a polyphase filter that cuts what the rate cannot hold.

    Args:
        wave: The recording, ``(samples,)`` or ``(samples, channels)``.
        rate: Its samples per second.
        new: Those of the result.
        name: Of its file, for messages.

    Raises:
        DataError: If a rate is not within `RATES`.
    """
    if rate == new:
        return wave
    for each in (rate, new):
        if not RATES[0] <= each <= RATES[1]:
            raise DataError(
                f"{name} has {each:,} samples per second: expected {RATES[0]:,} to {RATES[1]:,}"
            )
    # Imported here: it takes a second.
    from scipy.signal import resample_poly

    common = math.gcd(rate, new)
    return torch.from_numpy(resample_poly(wave.numpy(), new // common, rate // common))


def second(wave: Tensor) -> Tensor:
    """The last second of a recording at 16 kHz, with silence before it where it is shorter."""
    return F.pad(wave[-mel.RATE :], (max(0, mel.RATE - len(wave)), 0))
