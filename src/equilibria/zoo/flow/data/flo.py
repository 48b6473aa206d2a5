"""Middlebury's .flo files: two float32 for each pixel (Baker et al. 2011)."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch

from equilibria.run.data.errors import DataError
from equilibria.zoo.flow.data.content import LARGEST, UNKNOWN, check_size, read_bytes, replace_file
from equilibria.zoo.flow.data.field import FlowField

__all__ = ["read", "write"]

MAGIC = 202021.25
"""The first four bytes as a little-endian float32: they spell PIEH."""

_HEAD = struct.Struct("<fii")
_MOST = 1e9  # flow beyond it is unknown


def read(path: Path) -> FlowField:
    """Read a .flo file, or one packed as .flo.xz.

    It holds the magic number, width and height as int32, and u and v of each pixel, row by row, all
    little-endian. A flow beyond 1e9 marks a pixel whose flow is unknown.

    Raises:
        DataError: If it is truncated or too long, of another format, or has NaN, or no valid pixel.
    """
    content = read_bytes(path, _HEAD.size + 8 * LARGEST)
    if len(content) < _HEAD.size:
        raise DataError(
            f"{path} is truncated: it has {len(content)} bytes, and the header alone of a .flo "
            f"file {_HEAD.size}"
        )
    magic, width, height = _HEAD.unpack_from(content)
    if magic != MAGIC:
        raise DataError(
            f"{path} is no .flo file: it begins with {content[:4]!r}, expected {b'PIEH'!r} "
            f"(the float {MAGIC}, little-endian)"
        )
    check_size(height, width, path)
    expected = _HEAD.size + 8 * height * width
    if len(content) != expected:
        problem = "is truncated" if len(content) < expected else "is too long"
        more = " or more" if len(content) > expected else ""
        raise DataError(
            f"{path} {problem}: it has {len(content):,} bytes{more}, expected {expected:,} for "
            f"{height} x {width} pixels (height x width)"
        )
    values = np.frombuffer(content, "<f4", offset=_HEAD.size).reshape(height, width, 2)
    flow = torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1).astype(np.float32)))
    # NaN compares false and stays valid, so that the field refuses it.
    unknown = (flow.abs() > _MOST).any(0) & flow.isfinite().all(0)
    try:
        return FlowField(flow.masked_fill(unknown, 0.0), ~unknown)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def write(path: Path, field: FlowField) -> None:
    """Write a .flo file; pixels that are not valid get the flow 1e10.

    Raises:
        ValueError: If the flow of a valid pixel is beyond 1e9, which stands for unknown.
        DataError: If the file cannot be written.
    """
    most = float(field.flow.detach().abs().amax(0)[field.valid].max())
    if most > _MOST:
        raise ValueError(f"{path.name}: a .flo file holds flow up to 1e9 pixels, got {most:g}")
    flow = torch.where(field.valid, field.flow.detach(), UNKNOWN).permute(1, 2, 0)
    height, width = field.size
    values = flow.cpu().contiguous().numpy().astype("<f4")
    replace_file(path, _HEAD.pack(MAGIC, width, height) + values.tobytes())
