"""Recordings, read whole by libsndfile: WAV, FLAC, Ogg and whatever else it knows."""

from __future__ import annotations

import io
import os
import struct
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from equilibria.data.errors import DataError, reading
from equilibria.data.extras import needed
from equilibria.data.regular import open_file
from equilibria.data.replace import replace_file

LARGEST = 1 << 26
"""Bytes of the largest file: six minutes of two channels of 16 bits at 44.1 kHz."""

_BITS = {"PCM_S8": 8, "PCM_U8": 8, "PCM_16": 16, "PCM_24": 24, "PCM_32": 32, "DOUBLE": 64}
_CONVERT = "convert it, e.g. with ffmpeg -i FILE -c:a pcm_s16le OUT.wav"


def read(path: str | os.PathLike[str]) -> tuple[Tensor, int]:
    """The samples of a recording and how many there are per second.

    Args:
        path: A file that libsndfile reads.

    Returns:
        Samples as float32, ``(samples,)``, the mean of all channels, and the rate in hertz.
        Integers are scaled to [-1, 1]; floats are as the file has them.

    Raises:
        DataError: If it cannot be read, is damaged, empty, or no recording.
    """
    return decode(_content(Path(path)), path)


def decode(content: bytes, name: str | os.PathLike[str]) -> tuple[Tensor, int]:
    """What `read` gives, from the content of a file; `name` is for messages."""
    samples, rate, _ = _decoded(content, name)
    return torch.from_numpy(samples.mean(1).astype(np.float32)), rate


def read_channels(path: str | os.PathLike[str]) -> tuple[Tensor, int, int]:
    """The samples of each channel of a recording, how many there are per second, and their bits.

    Args:
        path: A file that libsndfile reads.

    Returns:
        Samples as `read` scales them, float32, ``(samples, channels)``, the rate in hertz, and the
        bits of a sample in the file; 32 where it is compressed.

    Raises:
        DataError: As `read`.
    """
    samples, rate, bits = _decoded(_content(Path(path)), path)
    return torch.from_numpy(samples.astype(np.float32)), rate, bits


def _content(path: Path) -> bytes:
    with reading(path), open_file(path) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise DataError(f"{path} has more than {LARGEST:,} bytes: cut it into shorter recordings")
    return content


def _decoded(content: bytes, name: str | os.PathLike[str]) -> tuple[np.ndarray, int, int]:
    """Samples, ``(samples, channels)``, their rate and their bits."""
    soundfile = needed("soundfile", "soundfile", "cli", f"the recording {name}")
    _check_whole(content, name)
    try:
        with soundfile.SoundFile(io.BytesIO(content)) as file:
            samples = file.read(dtype="float64", always_2d=True)
            rate, bits = file.samplerate, _BITS.get(file.subtype, 32)
    except soundfile.LibsndfileError as error:
        raise DataError(f"{name} is damaged, or no recording ({error}): {_CONVERT}") from None
    if not len(samples):
        raise DataError(f"{name} is damaged or empty: it has no samples")
    if not np.isfinite(samples).all():
        raise DataError(f"{name} is damaged: a sample is not a finite number")
    return samples, rate, bits


def _check_whole(content: bytes, name: str | os.PathLike[str]) -> None:
    """Raise DataError for a WAV file that is truncated or contradicts itself.

    libsndfile would take what there is.
    """
    place = 12
    while content[:4] == b"RIFF" and place + 8 <= len(content):
        kind, size = struct.unpack_from("<4sI", content, place)
        place += 8
        if size > len(content) - place:
            raise DataError(
                f"{name} is truncated: its part {kind.decode('latin-1')!r} should have {size:,} "
                f"bytes, and {len(content) - place:,} are there. Replace it, or {_CONVERT}"
            )
        if kind == b"fmt " and size >= 16:
            channels, rate, _, block, bits = struct.unpack_from("<HIIHH", content, place + 2)
            if bits % 8 == 0 and block != channels * bits // 8:
                raise DataError(
                    f"{name} is damaged: its header says {channels} channels of {bits} bits in "
                    f"{block} bytes, {rate} times a second"
                )
        place += size + size % 2  # a part of odd length is followed by a byte of padding


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
    soundfile = needed("soundfile", "soundfile", "cli", f"the recording {path}")
    content = io.BytesIO()
    upper = (rounded.long() << (32 - bits)).to(torch.int32).numpy()
    soundfile.write(content, upper, rate, f"PCM_{bits}", format="WAV")
    replace_file(Path(path), content.getvalue())
