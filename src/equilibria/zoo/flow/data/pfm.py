"""Portable float maps (.pfm): float32 images, as FlyingThings3D has its flow."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.errors import DataError
from equilibria.zoo.flow.data.content import LARGEST, UNKNOWN, check_size, read_bytes, replace_file
from equilibria.zoo.flow.data.field import FlowField

__all__ = ["read", "read_map", "write", "write_map"]

_HEADER = 1 << 10
"""Bytes that a header may have."""

_GAP = rb"(?:\s+(?:#[^\n]*\n\s*)*)"  # with comments, as some programs write them
_HEAD = re.compile(
    rb"(P[Ff])"
    + _GAP
    + rb"(-?\d{1,9})"
    + _GAP
    + rb"(-?\d{1,9})"
    + _GAP
    + rb"([-+.\deE]{1,30})(?:\r\n|\s)"
)
_NEAREST, _FARTHEST = 1e-30, 1e6
"""Pixels: no flow is longer, but for what stands for unknown, and few are shorter."""

_CHANNELS = {b"PF": 3, b"Pf": 1}


def read_map(path: Path) -> Tensor:
    """Read a float image, of colour or grey, in either byte order.

    Its header is ``PF`` or ``Pf``, width, height and a scale, whose sign is the byte order:
    negative for little-endian. Rows follow from the bottom to the top. Values are given as they are
    stored, whatever the scale.

    Returns:
        float32, ``(channels, height, width)``, 3 channels or 1, the top row first.

    Raises:
        DataError: If it is truncated or too long, or of another format.
    """
    content = read_bytes(path, _HEADER + 12 * LARGEST)
    head = _HEAD.match(content[:_HEADER])
    if head is None:
        begin = content[:16]
        raise DataError(
            f"{path} is no .pfm file: it begins with {begin!r}, expected 'PF' or 'Pf', width, "
            "height and scale"
        )
    channels = _CHANNELS[head[1]]
    width, height = int(head[2]), int(head[3])
    check_size(height, width, path)
    try:
        scale = float(head[4])
    except ValueError:
        scale = math.nan
    if not math.isfinite(scale) or scale == 0:
        raise DataError(
            f"{path} has the scale {head[4].decode()!r}: expected a number other than 0, negative "
            "where the bytes are little-endian"
        )
    found, expected = len(content) - head.end(), 4 * channels * height * width
    if found != expected:
        problem = "is truncated" if found < expected else "is too long"
        raise DataError(
            f"{path} {problem}: {found:,} bytes follow its header, expected {expected:,} for "
            f"{height} x {width} pixels (height x width) of {channels} channels"
        )
    values = np.frombuffer(content, "<f4" if scale < 0 else ">f4", offset=head.end())
    upwards = values.reshape(height, width, channels)[::-1].transpose(2, 0, 1)
    return torch.from_numpy(np.ascontiguousarray(upwards.astype(np.float32)))


def write_map(path: Path, image: Tensor) -> None:
    """Write a float image, ``(channels, height, width)``, little-endian, with the scale -1.

    Raises:
        ValueError: If it has neither 3 channels nor 1.
        DataError: If the file cannot be written.
    """
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise ValueError(
            f"{path.name}: an image of shape {tuple(image.shape)}: a .pfm file holds (3, height, "
            "width) or (1, height, width)"
        )
    channels, height, width = image.shape
    head = f"{'PF' if channels == 3 else 'Pf'}\n{width} {height}\n-1.0\n"
    values = image.detach().cpu().flip(1).permute(1, 2, 0).contiguous().numpy().astype("<f4")
    replace_file(path, head.encode() + values.tobytes())


def read(path: Path) -> FlowField:
    """Read flow from a .pfm file of colour: red is u, green is v, and blue is not used.

    A pixel whose flow is 1e10, as in .flo files, is unknown.

    Raises:
        DataError: As `read_map`, and if it is grey, or has a flow that is not finite, or beyond 1e6
            pixels, or mostly below 1e-30, as where its scale says the wrong byte order.
    """
    image = read_map(path)
    if len(image) != 3:
        raise DataError(
            f"{path} is grey (Pf), and flow has two numbers for each pixel: expected a .pfm file "
            "of colour (PF), red for u and green for v"
        )
    flow = image[:2].contiguous()
    unknown = (flow == UNKNOWN).any(0)
    flow = flow.masked_fill(unknown, 0.0)
    length = flow[flow.isfinite() & (flow != 0)].abs()
    farthest = float(length.max()) if len(length) else 0.0
    if farthest > _FARTHEST or (length < _NEAREST).sum() > len(length) / 2:
        raise DataError(
            f"{path} has flows from {float(length.min()):g} to {farthest:g} pixels: its bytes seem "
            "to be in the other order. Change the sign of the scale in its header"
        )
    try:
        return FlowField(flow, ~unknown)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


def write(path: Path, field: FlowField) -> None:
    """Write flow as a .pfm file of colour, whose blue is 0, and 1e10 where it is unknown.

    Raises:
        DataError: If the file cannot be written.
    """
    flow = torch.where(field.valid, field.flow.detach(), UNKNOWN)
    write_map(path, torch.cat([flow, torch.zeros_like(flow[:1])]))
