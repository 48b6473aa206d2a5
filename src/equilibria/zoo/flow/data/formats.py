"""Files of optical flow, by their endings."""

from __future__ import annotations

import io
import lzma
import math
import os
import re
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.storage import DataError, open_file, read_errors, replace_file, require

# --- content --------------------------------------------------------------------------------------

# Bytes of flow files: read whole, written whole or not at all.


UNKNOWN = 1e10
"""What stands for the flow of a pixel whose flow is unknown, in .flo and .pfm files."""

LARGEST = 64_000_000
"""Pixels of a flow, at most, as of images."""


def check_size(height: int, width: int, path: Path) -> None:
    """Raise DataError unless a flow can have that height and width."""
    if height < 1 or width < 1 or height * width > LARGEST:
        raise DataError(
            f"{path} says that it has {height} x {width} pixels (height x width): expected at "
            f"least 1 x 1 and at most {LARGEST:,} pixels. It is damaged, or of another format"
        )


def _check_length(path: Path, found: int, pixel: int, height: int, width: int) -> None:
    """Raise DataError unless so many bytes follow a header, `pixel` of each pixel."""
    if found != (expected := pixel * height * width):
        problem = "is truncated" if found < expected else "is too long"
        more = " or more" if found > expected else ""
        raise DataError(
            f"{path} {problem}: {found:,} bytes{more} follow its header, expected {expected:,} for "
            f"{height} x {width} pixels (height x width)"
        )


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a file; one that ends with ``.xz`` is unpacked.

    Args:
        path: The file.
        most: Bytes that are read; where there are more, one more is.

    Raises:
        DataError: If it cannot be read, or its packing is damaged.
    """
    packed = path.suffix.lower() == ".xz"
    with (
        read_errors(path, lzma.LZMAError, EOFError),
        open_file(path) as stored,
        lzma.open(stored) if packed else stored as opened,
    ):
        file = cast(BinaryIO, opened)
        content = io.BytesIO()
        while content.tell() <= most and (block := file.read(most + 1 - content.tell())):
            content.write(block)
        return content.getvalue()


# --- field ----------------------------------------------------------------------------------------

# An optical flow: how far each pixel moves, and where that is known.


@dataclass(frozen=True)
class FlowField:
    """How far each pixel of an image moves until the next one.

    Attributes:
        flow: float32, ``(2, height, width)``, in pixels: the pixel (x, y) is found at
            ``(x + flow[0, y, x], y + flow[1, y, x])`` in the second image. Meaningless where
            not `valid`.
        valid: bool, ``(height, width)``: where the flow is known.

    Raises:
        ValueError: If shapes or types are others, no pixel is valid, or the flow of a valid pixel
            is NaN or infinite.
    """

    flow: Tensor
    valid: Tensor

    def __post_init__(self) -> None:
        flow, valid = self.flow, self.valid
        if flow.ndim != 3 or flow.shape[0] != 2 or flow.dtype != torch.float32:
            raise ValueError(
                f"a flow of shape {tuple(flow.shape)} and {flow.dtype}: expected (2, height, "
                "width) of float32"
            )
        if valid.shape != flow.shape[1:] or valid.dtype != torch.bool:
            raise ValueError(
                f"valid has shape {tuple(valid.shape)} and {valid.dtype}: expected "
                f"{tuple(flow.shape[1:])} of bool, as the flow has pixels"
            )
        if not valid.any():
            raise ValueError("no pixel has a valid flow: there is nothing to compare with")
        broken = valid & ~flow.isfinite().all(0)
        if broken.any():
            y, x = (int(each) for each in broken.nonzero()[0])
            raise ValueError(
                f"the flow is {flow[0, y, x]:g}, {flow[1, y, x]:g} at x = {x}, y = {y} "
                f"({int(broken.sum()):,} such pixels): expected finite numbers"
            )

    @classmethod
    def dense(cls, flow: Tensor) -> FlowField:
        """A flow that is known everywhere, ``(2, height, width)``."""
        return cls(flow, torch.ones(flow.shape[1:], dtype=torch.bool, device=flow.device))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.valid.shape[0], self.valid.shape[1]


def _make_field(path: Path, flow: Tensor, valid: Tensor) -> FlowField:
    try:
        return FlowField(flow, valid)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from None


# --- flo ------------------------------------------------------------------------------------------

# Middlebury's .flo files: two float32 for each pixel (Baker et al. 2011).


MAGIC = 202021.25
"""The first four bytes as a little-endian float32: they spell PIEH."""

_FLO_HEAD = struct.Struct("<fii")
_MOST = 1e9  # flow beyond it is unknown


def read_flo(path: Path) -> FlowField:
    """Read a .flo file, or one packed as .flo.xz.

    It holds the magic number, width and height as int32, and u and v of each pixel, row by row, all
    little-endian. A flow beyond 1e9 marks a pixel whose flow is unknown.

    Raises:
        DataError: If it is truncated or too long, of another format, or has NaN, or no valid pixel.
    """
    content = read_bytes(path, _FLO_HEAD.size + 8 * LARGEST)
    if len(content) < _FLO_HEAD.size:
        raise DataError(
            f"{path} is truncated: it has {len(content)} bytes, and the header alone of a .flo "
            f"file {_FLO_HEAD.size}"
        )
    magic, width, height = _FLO_HEAD.unpack_from(content)
    if magic != MAGIC:
        raise DataError(
            f"{path} is no .flo file: it begins with {content[:4]!r}, expected {b'PIEH'!r} "
            f"(the float {MAGIC}, little-endian)"
        )
    check_size(height, width, path)
    _check_length(path, len(content) - _FLO_HEAD.size, 8, height, width)
    values = np.frombuffer(content, "<f4", offset=_FLO_HEAD.size).reshape(height, width, 2)
    flow = torch.from_numpy(np.ascontiguousarray(values.transpose(2, 0, 1).astype(np.float32)))
    # NaN compares false and stays valid, so that the field refuses it.
    unknown = (flow.abs() > _MOST).any(0) & flow.isfinite().all(0)
    return _make_field(path, flow.masked_fill(unknown, 0.0), ~unknown)


def write_flo(path: Path, field: FlowField) -> None:
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
    replace_file(path, _FLO_HEAD.pack(MAGIC, width, height) + values.tobytes())


# --- pfm ------------------------------------------------------------------------------------------

# Portable float maps (.pfm): float32 images, as FlyingThings3D has its flow.


_HEADER = 1 << 10
"""Bytes that a header may have."""

_GAP = rb"(?:\s+(?:#[^\n]*\n\s*)*)"  # with comments, as some programs write them
_HEAD = re.compile(
    _GAP.join([rb"(P[Ff])", rb"(-?\d{1,9})", rb"(-?\d{1,9})", rb"([-+.\deE]{1,30})(?:\r\n|\s)"])
)
_NEAREST, _FARTHEST = 1e-30, 1e6
"""Pixels: no flow is longer, but for what stands for unknown, and few are shorter."""


def read_pfm(path: Path) -> FlowField:
    """Read flow from a .pfm file of colour, in either byte order.

    Its header is ``PF``, width, height and a scale, whose sign is the byte order: negative for
    little-endian. Rows follow from the bottom to the top. Red is u, green is v, and blue is not
    used; values are given as they are stored, whatever the scale. A pixel whose flow is 1e10, as in
    .flo files, is unknown.

    Raises:
        DataError: If it is truncated or too long, of another format, or grey, or has a flow that is
            not finite, or beyond 1e6 pixels, or mostly below 1e-30, as where its scale says the
            wrong byte order.
    """
    content = read_bytes(path, _HEADER + 12 * LARGEST)
    head = _HEAD.match(content[:_HEADER])
    if head is None:
        begin = content[:16]
        raise DataError(
            f"{path} is no .pfm file: it begins with {begin!r}, expected 'PF' or 'Pf', width, "
            "height and scale"
        )
    if head[1] == b"Pf":
        raise DataError(
            f"{path} is grey (Pf), and flow has two numbers for each pixel: expected a .pfm file "
            "of colour (PF), red for u and green for v"
        )
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
    _check_length(path, len(content) - head.end(), 12, height, width)
    values = np.frombuffer(content, "<f4" if scale < 0 else ">f4", offset=head.end())
    upwards = values.reshape(height, width, 3)[::-1, :, :2].transpose(2, 0, 1)
    flow = torch.from_numpy(np.ascontiguousarray(upwards.astype(np.float32)))
    unknown = (flow == UNKNOWN).any(0)
    flow = flow.masked_fill(unknown, 0.0)
    length = flow[flow.isfinite() & (flow != 0)].abs()
    farthest = float(length.max()) if len(length) else 0.0
    if farthest > _FARTHEST or (length < _NEAREST).sum() > len(length) / 2:
        raise DataError(
            f"{path} has flows from {float(length.min()):g} to {farthest:g} pixels: its bytes seem "
            "to be in the other order. Change the sign of the scale in its header"
        )
    return _make_field(path, flow, ~unknown)


def write_pfm(path: Path, field: FlowField) -> None:
    """Write flow as a .pfm file of colour, whose blue is 0, and 1e10 where it is unknown.

    Raises:
        DataError: If the file cannot be written.
    """
    flow = torch.where(field.valid, field.flow.detach(), UNKNOWN)
    image = torch.cat([flow, torch.zeros_like(flow[:1])]).cpu()
    values = image.flip(1).permute(1, 2, 0).contiguous().numpy().astype("<f4")
    height, width = field.size
    replace_file(path, f"PF\n{width} {height}\n-1.0\n".encode() + values.tobytes())


# --- png16 ----------------------------------------------------------------------------------------

# PNG files with 16 bits for red, green and blue, which Pillow reads as 8 bits.


_PIXEL = 6
"""Bytes of a pixel."""


def read_png16(path: Path) -> np.ndarray:
    """Read an image of 16-bit RGB.

    Returns:
        uint16, ``(height, width, 3)``.

    Raises:
        DataError: If it is no PNG file, truncated or damaged, or has other pixels.
    """
    png = require("png", "pypng", "cli", f"the 16-bit image {path}")
    reader = png.Reader(bytes=read_bytes(path, _PIXEL * LARGEST))
    try:
        reader.preamble()
        check_size(reader.height, reader.width, path)
        if (reader.bitdepth, reader.color_type) != (16, 2):
            raise DataError(
                f"{path} is a PNG file of {reader.planes} times {reader.bitdepth} bits: expected "
                "16-bit RGB, as of KITTI's flow"
            )
        width, height, rows, _ = reader.read()
        pixels = np.vstack([np.asarray(row, np.uint16) for row in rows])
        return pixels.reshape(height, width, 3)
    except (png.Error, zlib.error, EOFError, ValueError, IndexError) as error:
        raise DataError(f"{path} is no PNG file, truncated or damaged: {error}") from None


def write_png16(path: Path, pixels: np.ndarray) -> None:
    """Write an image of 16-bit RGB.

    Args:
        path: The file.
        pixels: uint16, ``(height, width, 3)``.

    Raises:
        DataError: If the file cannot be written.
    """
    height, width = pixels.shape[:2]
    png = require("png", "pypng", "cli", f"the 16-bit image {path}")
    content = io.BytesIO()
    writer = png.Writer(width, height, bitdepth=16, greyscale=False)
    writer.write(content, pixels.reshape(height, -1).tolist())
    replace_file(path, content.getvalue())


# --- kitti png ------------------------------------------------------------------------------------

# KITTI's flow in PNG files of 16-bit RGB (Geiger et al. 2012, development kit).


_SCALE, _ZERO = 64.0, 1 << 15
_VALID = (0, 1, 255, 65_535)  # of blue; some programs write the maximum for "known"


def read_kitti_png(path: Path) -> FlowField:
    """Read flow: ``u = (red - 2^15) / 64``, v of green likewise, valid where blue is not 0.

    Raises:
        DataError: If it is no PNG file of 16-bit RGB or damaged, has no valid pixel, or has other
            values of blue, as where its channels are in another order.
    """
    pixels = read_png16(path)
    blue = np.unique(pixels[..., 2])
    if odd := [each for each in blue.tolist() if each not in _VALID]:
        raise DataError(
            f"{path} has the blue value {odd[0]}, where KITTI's flow has 0 (unknown) or 1: its "
            "channels seem to be in another order. OpenCV writes BGR: save flow[..., ::-1]"
        )
    flow = (pixels[..., :2].astype(np.float32) - _ZERO) / _SCALE
    valid = torch.from_numpy(pixels[..., 2] > 0)
    field = torch.from_numpy(np.ascontiguousarray(flow.transpose(2, 0, 1))) * valid
    return _make_field(path, field, valid)


def write_kitti_png(path: Path, field: FlowField) -> None:
    """Write flow as `read` reads it, rounded to 1/64 pixel; pixels without valid flow are black.

    Raises:
        ValueError: If the flow of a valid pixel is below -512 or above 511.98 pixels.
        DataError: If the file cannot be written.
    """
    flow = field.flow.detach().cpu().double()
    valid = field.valid.cpu()
    values = torch.where(valid, (flow * _SCALE + _ZERO).round(), 0.0)
    outside = (values < 0) | (values > 65_535)
    if outside.any():
        # The farthest of them is what the message names.
        most = float(flow[outside][flow[outside].abs().argmax()])
        raise ValueError(
            f"{path.name}: a KITTI PNG file holds flow from -512 to 511.98 pixels, got {most:g} "
            f"({int(outside.any(0).sum()):,} such pixels): write .flo or .pfm"
        )
    pixels = torch.cat([values, valid[None].double()]).permute(1, 2, 0)
    write_png16(path, pixels.numpy().astype(np.uint16))


# --- formats --------------------------------------------------------------------------------------


READERS: dict[str, Callable[[Path], FlowField]] = {
    ".flo": read_flo,
    ".flo.xz": read_flo,
    ".pfm": read_pfm,
    ".png": read_kitti_png,
}
"""What reads a file, by its ending in small letters."""

_WRITERS = {".flo": write_flo, ".pfm": write_pfm, ".png": write_kitti_png}


def suffix_of(path: Path) -> str:
    """The ending of a file of flow, in small letters; empty where it is none."""
    return next((suffix for suffix in READERS if path.name.lower().endswith(suffix)), "")


def read_flow(path: str | os.PathLike[str]) -> FlowField:
    """Read optical flow from a file.

    Args:
        path: ``.flo`` or ``.flo.xz`` (Middlebury, Sintel, FlyingChairs), ``.pfm``
            (FlyingThings3D), or ``.png`` of 16-bit RGB (KITTI, HD1K).

    Raises:
        DataError: If the file is missing, truncated or damaged, of another format, has NaN or
            infinite flow, or no valid pixel; the message names it.
    """
    path = Path(path)
    if not (suffix := suffix_of(path)):
        raise DataError(f"{path} is no file of flow: expected one of {', '.join(READERS)}")
    return READERS[suffix](path)


def write_flow(path: str | os.PathLike[str], field: FlowField) -> None:
    """Write optical flow to a file, whole or not at all.

    ``.flo`` and ``.pfm`` keep every digit; ``.png`` is KITTI's, rounded to 1/64 pixel. Pixels that
    are not valid are marked.

    Args:
        path: The file, which ends with ``.flo``, ``.pfm`` or ``.png``.
        field: What to write.

    Raises:
        ValueError: If the ending is another, or the format cannot hold the field: ``.png`` flow of
            512 pixels or more, ``.pfm`` pixels that are not valid.
        DataError: If the file cannot be written; what was there before is unchanged.
    """
    path = Path(path)
    write = _WRITERS.get(suffix_of(path))
    if write is None:
        raise ValueError(f"{path.name}: flow is written to {', '.join(_WRITERS)} files")
    write(path, field)
