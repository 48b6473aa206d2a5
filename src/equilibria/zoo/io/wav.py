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

from equilibria.run.data.errors import DataError, reading
from equilibria.run.data.extras import needed
from equilibria.run.data.regular import open_file
from equilibria.run.data.replace import replace_file
from equilibria.words import plural

LARGEST = 1 << 26
"""Bytes of the largest file: six minutes of two channels of 16 bits at 44.1 kHz."""

MOST = 1 << 27
"""Samples of all channels: fifty minutes of one channel at 44.1 kHz, a gigabyte while read."""

_BLOCK = 1 << 20

_BITS = {"PCM_S8": 8, "PCM_U8": 8, "PCM_16": 16, "PCM_24": 24, "PCM_32": 32, "DOUBLE": 64}
_CANCELLED = 1e-3  # mean over channel: from here on two channels are taken for inverted copies

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
    samples, rate, _ = _decoded(content, name)
    count = samples.shape[1]
    if channel is not None:
        if not 1 <= channel <= count:
            raise DataError(
                f"{name} has {plural(count, 'channel')}: expected --task.channel 1"
                f"{f' to {count}' if count > 1 else ''}, got {channel}"
            )
        return torch.from_numpy(samples[:, channel - 1].astype(np.float32)), rate
    mean = samples.mean(1)
    if np.abs(mean).max() < _CANCELLED * np.abs(samples).max():
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
    soundfile = needed("soundfile", "soundfile", "cli", f"the recording {path}")
    content = io.BytesIO()
    upper = (rounded.long() << (32 - bits)).to(torch.int32).numpy()
    soundfile.write(content, upper, rate, f"PCM_{bits}", format="WAV")
    replace_file(Path(path), content.getvalue())
