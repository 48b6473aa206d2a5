"""Recordings, read whole by libsndfile: WAV, FLAC, Ogg and whatever else it knows."""

from __future__ import annotations

import functools
import io
import math
import os
import struct
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from equilibria.run.data.storage import DataError, open_file, read_errors, replace_file, require
from equilibria.words import plural

LARGEST = 1 << 26
"""Bytes of the largest file: six minutes of two channels of 16 bits at 44.1 kHz."""

MOST = 1 << 27
"""Samples of all channels: fifty minutes of one channel at 44.1 kHz, a gigabyte while read."""

_BLOCK = 1 << 20

_BITS = {"PCM_S8": 8, "PCM_U8": 8, "PCM_16": 16, "PCM_24": 24, "PCM_32": 32, "DOUBLE": 64}
_BITS |= {"ULAW": 8, "ALAW": 8, "IMA_ADPCM": 4, "MS_ADPCM": 4}
_CANCELED = 1e-3  # mean over channel: from here on two channels are taken for inverted copies

_UNKNOWN_SIZE = 0x7FFF_0000
"""Sizes from here on are those that programs write which do not know the size."""

_SIZE_IN_DS64 = 0xFFFF_FFFF

_UNKNOWN_FRAMES = 1 << 60  # frames that libsndfile says of a stream whose length it does not know

_CONVERT = "convert it, e.g. with ffmpeg -i FILE -c:a pcm_s16le OUT.wav"


def read(path: str | os.PathLike[str], channel: int | None = None) -> tuple[Tensor, int]:
    """The samples of a recording and how many there are per second.

    Args:
        path: A file that libsndfile reads.
        channel: Which channel, counted from 1; None for the mean of all.

    Returns:
        Samples as float32, ``(samples,)``, and the rate in hertz. Integers are scaled to [-1, 1];
        floats are as the file has them.

    Raises:
        DataError: If it cannot be read, is damaged, empty, or no recording, has no such channel,
            or has channels that cancel in their mean.
    """
    return decode(_content(Path(path)), path, channel)


def decode(
    content: bytes, name: str | os.PathLike[str], channel: int | None = None
) -> tuple[Tensor, int]:
    """What `read` gives, from the content of a file; `name` is for messages."""
    samples, rate, _ = _decode(content, name)
    count = samples.shape[1]
    if channel is not None:
        if not 1 <= channel <= count:
            raise DataError(
                f"{name} has {plural(count, 'channel')}: expected --task.channel 1"
                f"{f' to {count}' if count > 1 else ''}, got {channel}"
            )
        return torch.from_numpy(samples[:, channel - 1].astype(np.float32)), rate
    mean = samples.mean(1)
    if np.abs(mean).max() < _CANCELED * np.abs(samples).max():
        raise DataError(
            f"the {count} channels of {name} cancel each other in their mean: choose one with "
            "--task.channel 1"
        )
    return torch.from_numpy(mean.astype(np.float32)), rate


def read_channels(path: str | os.PathLike[str]) -> tuple[Tensor, int, int]:
    """The samples of each channel of a recording, how many there are per second, and their bits.

    Args:
        path: A file that libsndfile reads.

    Returns:
        Samples as `read` scales them, float32, ``(samples, channels)``, the rate in hertz, and the
        bits of a sample in the file; 32 where a codec leaves their number open.

    Raises:
        DataError: As `read`.
    """
    samples, rate, bits = _decode(_content(Path(path)), path)
    return torch.from_numpy(samples.astype(np.float32)), rate, bits


def _content(path: Path) -> bytes:
    with read_errors(path), open_file(path) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise DataError(f"{path} has more than {LARGEST:,} bytes: cut it into shorter recordings")
    return content


def _decode(content: bytes, name: str | os.PathLike[str]) -> tuple[np.ndarray, int, int]:
    """Samples, ``(samples, channels)``, their rate and their bits."""
    soundfile = require("soundfile", "soundfile", "cli", f"the recording {name}")
    content = _whole(content, name)
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            # In blocks: a damaged header may claim any number of samples.
            frames, blocks, left = file.frames, list[np.ndarray](), MOST // file.channels
            while len(block := file.read(_BLOCK, "float64", always_2d=True)):
                blocks.append(block)
                left -= len(block)
                if left < 0:
                    raise DataError(
                        f"{name} has more than {MOST:,} samples: cut it into shorter recordings"
                    )
            rate, bits = file.samplerate, _BITS.get(file.subtype, 32)
    except (soundfile.LibsndfileError, ValueError) as error:  # ValueError: it cannot be sought in
        raise DataError(f"{name} is damaged, or no recording ({error}): {_CONVERT}") from None
    samples = np.concatenate(blocks) if blocks else np.zeros((0, 1))
    if not len(samples):
        raise DataError(f"{name} is damaged or empty: it has no samples")
    if (
        frames < _UNKNOWN_FRAMES and len(samples) != frames
    ):  # of FLAC and Ogg, whose length is declared
        raise DataError(
            f"{name} is truncated or damaged: {len(samples):,} of {frames:,} samples could be "
            f"decoded. Replace it, or {_CONVERT}"
        )
    if not np.isfinite(samples).all():
        raise DataError(f"{name} is damaged: a sample is not a finite number")
    return samples, rate, bits


def _whole(content: bytes, name: str | os.PathLike[str]) -> bytes:
    """The content of a file, complete if it is a WAV file that was written through a pipe.

    Programs that cannot go back to the header leave the sizes there at 0 or at their maximum; the
    samples are then all that follows. libsndfile reads a truncated file without an error.

    Raises:
        DataError: If it is a WAV or AIFF file that is truncated or contradicts itself.
    """
    if content.startswith(b"FORM") and len(content) >= 8:  # AIFF
        (size,) = struct.unpack_from(">I", content, 4)
        if size > len(content) - 8:
            raise DataError(
                f"{name} is truncated: it should have {size + 8:,} bytes, and has "
                f"{len(content):,}. Replace it, or {_CONVERT}"
            )
    if not content.startswith((b"RIFF", b"RF64")):
        return content
    place, block, wide = 12, 1, None
    while place + 8 <= len(content):
        kind, size = struct.unpack_from("<4sI", content, place)
        place += 8
        left = len(content) - place
        if kind == b"ds64" and 16 <= size <= left:  # the sizes of RF64, which has more than 4 GB
            wide = struct.unpack_from("<Q", content, place + 8)[0]
        elif kind == b"data" and wide is not None and size == _SIZE_IN_DS64:
            size = wide
        elif kind == b"data" and _streamed(content, size, left):
            size = left - left % block
            head = bytearray(content[: place + size])
            struct.pack_into("<I", head, 4, len(head) - 8)
            struct.pack_into("<I", head, place - 4, size)
            return bytes(head)
        if size > left:
            raise DataError(
                f"{name} is truncated: its part {kind.decode('latin-1')!r} should have {size:,} "
                f"bytes, and {left:,} are there. Replace it, or {_CONVERT}"
            )
        if kind == b"fmt " and size >= 16:
            channels, rate, _, block, bits = struct.unpack_from("<HIIHH", content, place + 2)
            if bits and bits % 8 == 0 and block != channels * bits // 8:
                raise DataError(
                    f"{name} is damaged: its header says {channels} channels of {bits} bits in "
                    f"{block} bytes, {rate} times a second"
                )
            block = max(block, 1)
        place += size + size % 2  # a part of odd length is followed by a byte of padding
    return content


def _streamed(content: bytes, size: int, left: int) -> bool:
    """Whether the size of a WAV file's samples was never filled in, though samples follow."""
    if size >= _UNKNOWN_SIZE:
        return left < size
    (declared,) = struct.unpack_from("<I", content, 4)
    return size == 0 and left > 0 and declared + 8 != len(content)


def write(
    path: str | os.PathLike[str], samples: Tensor, rate: int, bits: Literal[16, 24] = 16
) -> None:
    """Write a recording as a WAV file of integers, whole or not at all.

    Args:
        path: The file.
        samples: Finite, ``(samples,)`` or ``(samples, channels)``; what is outside of [-1, 1) is
            clipped.
        rate: Samples per second.
        bits: Of a sample.

    Raises:
        ValueError: If the samples are none, not finite or of another shape, or `bits` is another
            number.
        DataError: If the file cannot be written.
    """
    shape = tuple(samples.shape)
    if samples.ndim not in (1, 2) or not samples.numel() or not bool(samples.isfinite().all()):
        raise ValueError(
            f"samples of the shape {shape}: expected (samples,), finite, at least 1, or (samples, "
            "channels)"
        )
    if bits not in (16, 24):
        raise ValueError(f"bits is {bits}: expected 16 or 24")
    full = 2 ** (bits - 1)
    rounded = (samples.detach().cpu().double() * full).round().clamp(-full, full - 1)
    soundfile = require("soundfile", "soundfile", "cli", f"the recording {path}")
    content = io.BytesIO()
    upper = (rounded.long() << (32 - bits)).to(torch.int32).numpy()
    soundfile.write(content, upper, rate, f"PCM_{bits}", format="WAV")
    replace_file(Path(path), content.getvalue())


# --- mel ------------------------------------------------------------------------------------------

# Log-mel features of sound, one vector every hundredth of a second.


RATE = 16_000
"""Samples per second."""

WINDOW = 400
"""Samples of a window: 25 ms."""

STEP = 160
"""Samples from one window to the next: 10 ms."""

FILTERS = 32
"""Features of a step."""

FLOOR = 1e-8
"""Least energy of a filter. Rounding to 16 bits leaves 1.2e-8 in each frequency,
``sum(w^2) 2^-30 / 12``: without a floor, digital silence would lie at minus infinity."""

_POINTS = 512  # of the Fourier transform: the first power of two that holds a window


def steps(samples: int) -> int:
    """How many windows cover some samples, the last one filled up with zeros: 99 for a second."""
    return 1 + max(0, -(-(samples - WINDOW) // STEP))


def log_mel(waves: Tensor) -> Tensor:
    """Logarithms of the energy in 32 bands of frequency.

        y_tm = log(max(FLOOR, sum_k F_mk abs(X_tk)^2))
        X_tk = sum_n w_n x_{160 t + n} exp(-2 pi i k n / 512)

    w is a Hamming window of 400 samples, F the triangles of `filters`. There is no pre-emphasis:
    it would add a constant to each feature, which standardising takes away.

    Args:
        waves: Sound at 16 kHz in [-1, 1), ``(..., samples)``.

    Returns:
        ``(..., steps(samples), 32)``.

    Raises:
        ValueError: If there is no sample.

    papers: Davis and Mermelstein 1980; Kusupati et al. 2018 for the numbers.
    """
    if waves.shape[-1] == 0:
        raise ValueError("there is no sample: expected sound of at least one")
    count = steps(waves.shape[-1])
    # `stft` puts the window in the middle of the points: the first one begins at the first sample.
    before = (_POINTS - WINDOW) // 2
    after = (count - 1) * STEP + _POINTS - before - waves.shape[-1]
    flat = F.pad(waves.reshape(-1, waves.shape[-1]), (before, after))
    window = torch.hamming_window(WINDOW, periodic=False, dtype=waves.dtype, device=waves.device)
    spectrum = torch.stft(
        flat, _POINTS, STEP, WINDOW, window, center=False, onesided=True, return_complex=True
    )
    energy = spectrum.abs().square().mT @ filters().to(waves)
    return energy.clamp_min(FLOOR).log().reshape(*waves.shape[:-1], count, FILTERS)


@functools.cache
def filters() -> Tensor:
    """Weight of each frequency in each filter, ``(257, 32)``.

    Filter m rises linearly from 0 at f_{m-1} hertz to 1 at f_m and falls to 0 at f_{m+1}; f_0 = 0
    to f_33 = 8000 are evenly spaced in mel,

        mel(f) = 2595 log10(1 + f / 700).

    papers: Young et al. 2006, The HTK Book 3.4, section 5.4.
    """
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    mels = torch.linspace(0, top, FILTERS + 2, dtype=torch.float64)
    edges = 700 * (10 ** (mels / 2595) - 1)
    hertz = torch.linspace(0, RATE / 2, _POINTS // 2 + 1, dtype=torch.float64)[:, None]
    rising = (hertz - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - hertz) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp_min(0).float()


# --- recordings -----------------------------------------------------------------------------------

# Recordings of sound as sequences of log-mel features.


CHANNELS = tuple(f"log-mel {number}" for number in range(1, FILTERS + 1))
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
    wave, rate = read(path, channel)
    return log_mel(resample(wave, rate, RATE, path))


def resample(wave: Tensor, rate: int, new: int, name: str | Path) -> Tensor:
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
    return F.pad(wave[-RATE:], (max(0, RATE - len(wave)), 0))
