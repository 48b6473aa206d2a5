"""Recordings in WAV files: uncompressed sound, read whole.

papers: IBM and Microsoft 1991, Multimedia Programming Interface and Data Specifications 1.0
(RIFF); Microsoft 1994, New Multimedia Data Types (WAVE_FORMAT_EXTENSIBLE).
"""

from __future__ import annotations

import io
import os
import struct
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from equilibria.data.errors import DataError, reading
from equilibria.data.regular import open_file
from equilibria.data.replace import replace_file

LARGEST = 1 << 26
"""Bytes of the largest file: six minutes of two channels of 16 bits at 44.1 kHz."""

_PCM, _FLOAT, _EXTENSIBLE = 0x0001, 0x0003, 0xFFFE
_CODECS = {2: "ADPCM", 6: "A-law", 7: "mu-law", 0x11: "IMA ADPCM", 0x31: "GSM", 0x55: "MP3"}
# A GUID of WAVE_FORMAT_EXTENSIBLE that stands for one of the numbers above ends like this.
_GUID = bytes.fromhex("000000001000800000aa00389b71")
_OTHERS = {b"RIFX": "big-endian", b"RF64": "RF64", b"fLaC": "FLAC", b"OggS": "Ogg", b"ID3": "MP3"}
_CONVERT = "convert it, e.g. with ffmpeg -i FILE -c:a pcm_s16le OUT.wav"


def read(path: str | os.PathLike[str]) -> tuple[Tensor, int]:
    """The samples of a WAV file and how many there are per second.

    Args:
        path: A file of 8, 16, 24 or 32 bits, or of floats of 32 or 64.

    Returns:
        Samples as float32, ``(samples,)``, the mean of all channels, and the rate in hertz.
        Integers are scaled to [-1, 1); floats are as the file has them.

    Raises:
        DataError: If it cannot be read, is damaged, empty, compressed, or no WAV file.
    """
    return decode(_content(Path(path)), path)


def decode(content: bytes, name: str | os.PathLike[str]) -> tuple[Tensor, int]:
    """What `read` gives, from the content of a file; `name` is for messages."""
    samples, header = _decoded(content, name)
    return torch.from_numpy(samples.mean(1, dtype=np.float64).astype(np.float32)), header.rate


def read_channels(path: str | os.PathLike[str]) -> tuple[Tensor, int, int]:
    """The samples of each channel of a WAV file, how many there are per second, and their bits.

    Args:
        path: A file of 8, 16, 24 or 32 bits, or of floats of 32 or 64.

    Returns:
        Samples as `read` scales them, float32, ``(samples, channels)``, the rate in hertz, and the
        bits of a sample in the file.

    Raises:
        DataError: As `read`.
    """
    samples, header = _decoded(_content(Path(path)), path)
    return torch.from_numpy(samples.astype(np.float32)), header.rate, header.bits


def _content(path: Path) -> bytes:
    with reading(path), open_file(path) as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise DataError(f"{path} has more than {LARGEST:,} bytes: cut it into shorter recordings")
    return content


def _decoded(content: bytes, name: str | os.PathLike[str]) -> tuple[np.ndarray, _Format]:
    """Samples, ``(samples, channels)``, and how they are stored."""
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        found = next((kind for magic, kind in _OTHERS.items() if content.startswith(magic)), None)
        raise DataError(f"{name} is not a WAV file{f' but {found}' if found else ''}: {_CONVERT}")
    header: _Format | None = None
    place = 12
    while place + 8 <= len(content):
        kind, size = struct.unpack_from("<4sI", content, place)
        place += 8
        if size > len(content) - place:
            raise DataError(
                f"{name} is truncated: its part {kind.decode('latin-1')!r} should have {size:,} "
                f"bytes, and {len(content) - place:,} are there. Replace it, or {_CONVERT}"
            )
        if kind == b"fmt ":
            header = _Format.of(content[place : place + size], name)
        elif kind == b"data":
            if header is None:
                raise DataError(f"{name} is damaged: its samples come before their format")
            return header.samples(memoryview(content)[place : place + size], name), header
        place += size + size % 2  # a part of odd length is followed by a byte of padding
    raise DataError(f"{name} is damaged or truncated: it has no samples")


def write(
    path: str | os.PathLike[str], samples: Tensor, rate: int, bits: Literal[16, 24] = 16
) -> None:
    """Write a recording as integers, whole or not at all.

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
    wide = rounded.to(torch.int32).numpy().astype("<i4").reshape(-1, 1).view(np.uint8)
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(shape[1] if len(shape) == 2 else 1)
        file.setsampwidth(bits // 8)
        file.setframerate(rate)
        file.writeframes(np.ascontiguousarray(wide[:, : bits // 8]).tobytes())
    replace_file(Path(path), content.getvalue())


@dataclass(frozen=True)
class _Format:
    """How the samples of a file are stored."""

    floats: bool
    channels: int
    rate: int
    bits: int

    @classmethod
    def of(cls, part: bytes, name: str | os.PathLike[str]) -> _Format:
        if len(part) < 16:
            raise DataError(f"{name} is damaged: its format has {len(part)} bytes, expected 16")
        tag, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", part)
        if tag == _EXTENSIBLE and part[26:40] == _GUID:
            (tag,) = struct.unpack_from("<H", part, 24)
        if tag not in (_PCM, _FLOAT):
            codec = _CODECS.get(tag, f"format 0x{tag:04x}")
            raise DataError(f"{name} is compressed or unknown ({codec}): {_CONVERT}")
        if bits not in ((32, 64) if tag == _FLOAT else (8, 16, 24, 32)):
            raise DataError(f"{name} has samples of {bits} bits: {_CONVERT}")
        if not channels or not rate or block != channels * bits // 8:
            raise DataError(
                f"{name} is damaged: its header says {channels} channels of {bits} bits in "
                f"{block} bytes, {rate} times a second"
            )
        return cls(tag == _FLOAT, channels, rate, bits)

    def samples(self, data: memoryview, name: str | os.PathLike[str]) -> np.ndarray:
        """The samples of each channel, ``(samples, channels)``."""
        block = self.channels * self.bits // 8
        if not len(data) or len(data) % block:
            raise DataError(
                f"{name} is damaged or empty: {len(data)} bytes of sound, expected a multiple of "
                f"{block}"
            )
        found = self._scaled(data).reshape(-1, self.channels)
        if not np.isfinite(found).all():
            raise DataError(f"{name} is damaged: a sample is not a finite number")
        return found

    def _scaled(self, data: memoryview) -> np.ndarray:
        if self.floats:
            return np.frombuffer(data, f"<f{self.bits // 8}")
        if self.bits == 8:  # the only one without a sign
            return (np.frombuffer(data, np.uint8).astype(np.float32) - 128) / 128
        if self.bits == 16:
            return np.frombuffer(data, "<i2").astype(np.float32) / 2**15
        wide = np.frombuffer(data, np.uint8).reshape(-1, self.bits // 8)
        # The upper 24 bits are what float32 holds exactly; all 32 would round up to 1.
        upper = np.zeros((len(wide), 4), np.uint8)
        upper[:, 1:] = wide[:, -3:]
        return (upper.view("<i4")[:, 0] >> 8).astype(np.float32) / 2**23
