"""PNG files with 16 bits for red, green and blue, which Pillow reads as 8 bits."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np

from equilibria.data.errors import DataError
from equilibria.data.flow.content import LARGEST, check_size, read_bytes, replace_file

__all__ = ["read", "write"]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_IHDR = struct.Struct(">IIBBBBB")
_PIXEL = 6
"""Bytes of a pixel: what a row's filter takes for the distance to the left neighbour."""

_COLOURS = {0: "grey", 2: "RGB", 3: "palette", 4: "grey with alpha", 6: "RGB with alpha"}


def read(path: Path) -> np.ndarray:
    """Read an image of 16-bit RGB.

    Returns:
        uint16, ``(height, width, 3)``.

    Raises:
        DataError: If it is no PNG file, truncated or damaged, interlaced, or has other pixels.
    """
    content = read_bytes(path, _PIXEL * LARGEST)
    if not content.startswith(_SIGNATURE):
        raise DataError(f"{path} is no PNG file: it begins with {content[:8]!r}")
    header, packed = _chunks(content, path)
    width, height, depth, colour, _, _, interlaced = header
    check_size(height, width, path)
    if (depth, colour) != (16, 2):
        kind = _COLOURS.get(colour, f"colour type {colour}")
        raise DataError(
            f"{path} is a PNG file of {depth}-bit {kind}: expected 16-bit RGB, as of KITTI's flow"
        )
    if interlaced:
        raise DataError(f"{path} is an interlaced PNG file: save it again without interlacing")
    length = height * (1 + _PIXEL * width)
    unpacker = zlib.decompressobj()
    try:
        rows = unpacker.decompress(packed, length + 1)  # no more than its header says
    except zlib.error as error:
        raise DataError(f"{path} is damaged ({error}): delete it and get it again") from None
    if len(rows) != length:
        problem = "is truncated" if len(rows) < length else "is damaged"
        raise DataError(
            f"{path} {problem}: its pixels unpack to {len(rows):,} bytes, expected {length:,} for "
            f"{height} x {width} (height x width)"
        )
    filtered = np.frombuffer(rows, np.uint8).reshape(height, 1 + _PIXEL * width)
    pixels = _unfiltered(filtered, path)
    return pixels.view(">u2").astype(np.uint16)


def _chunks(content: bytes, path: Path) -> tuple[tuple[int, ...], bytes]:
    """The header's numbers, and the packed pixels."""
    header: tuple[int, ...] | None = None
    packed: list[bytes] = []
    place = len(_SIGNATURE)
    while place + 12 <= len(content):
        length = int.from_bytes(content[place : place + 4], "big")
        kind = content[place + 4 : place + 8]
        data = content[place + 8 : place + 8 + length]
        checksum = content[place + 8 + length : place + 12 + length]
        if len(checksum) < 4:
            break
        if zlib.crc32(kind + data) != int.from_bytes(checksum, "big"):
            raise DataError(
                f"{path} is damaged: the checksum of its part {kind.decode('latin-1')!r} at byte "
                f"{place:,} is wrong"
            )
        if header is None:
            if kind != b"IHDR" or length != _IHDR.size:
                raise DataError(f"{path} is damaged: its header is missing")
            header = _IHDR.unpack(data)
        elif kind == b"IDAT":
            packed.append(data)
        elif kind == b"IEND":
            return header, b"".join(packed)
        place += 12 + length
    raise DataError(
        f"{path} is truncated: it has {len(content):,} bytes, and the end of the image is missing"
    )


def _unfiltered(filtered: np.ndarray, path: Path) -> np.ndarray:
    """Undo the filters of the rows (PNG specification, 3rd edition, sec. 9).

    A row's filter predicts each byte from those to the left, above, and above to the left, which
    must be there first. All pixels of one anti-diagonal can be had at once.

    Args:
        filtered: uint8, ``(height, 1 + 6 * width)``: the number of its filter before each row.
        path: For messages.

    Returns:
        uint8, ``(height, width, 6)``.
    """
    kinds, height = filtered[:, 0], len(filtered)
    if kinds.max() > 4:
        row = int((kinds > 4).argmax())
        raise DataError(
            f"{path} is damaged: row {row} has the filter {kinds[row]}, expected one of 0 to 4"
        )
    stored = filtered[:, 1:].reshape(height, -1, _PIXEL)
    width = stored.shape[1]
    # A row above and a column to the left, of zeros, stand for what is outside. One step along an
    # anti-diagonal, one down and one to the left, is then `width` pixels further in memory.
    padded = np.zeros((height + 1, width + 1, _PIXEL), np.uint8)
    padded[1:, 1:] = stored
    flat, across = padded.reshape(-1, _PIXEL), width + 1
    if not kinds.any():
        return np.ascontiguousarray(stored)
    masks = [(kinds == kind).astype(np.int16)[:, None] for kind in range(5)]
    _, sub, up, average, paeth = masks
    for diagonal in range(height + width - 1):
        first, last = max(0, diagonal - width + 1), min(height - 1, diagonal)
        begin = (first + 1) * across + (diagonal - first + 1)
        end = begin + (last - first) * width + 1
        rows = slice(first, last + 1)
        a = flat[begin - 1 : end - 1 : width].astype(np.int16)
        b = flat[begin - across : end - across : width].astype(np.int16)
        c = flat[begin - across - 1 : end - across - 1 : width].astype(np.int16)
        to_a, to_b, to_c = abs(b - c), abs(a - c), abs(a + b - 2 * c)
        nearest = np.where((to_a <= to_b) & (to_a <= to_c), a, np.where(to_b <= to_c, b, c))
        guess = sub[rows] * a + up[rows] * b + average[rows] * ((a + b) >> 1)
        guess += paeth[rows] * nearest
        flat[begin:end:width] += guess.astype(np.uint8)
    return np.ascontiguousarray(padded[1:, 1:])


def write(path: Path, pixels: np.ndarray) -> None:
    """Write an image of 16-bit RGB, each row as its differences from the row above.

    Args:
        path: The file.
        pixels: uint16, ``(height, width, 3)``.

    Raises:
        DataError: If the file cannot be written.
    """
    height, width = pixels.shape[:2]
    stored = np.ascontiguousarray(pixels, ">u2").view(np.uint8).reshape(height, -1)
    rows = np.full((height, 1 + stored.shape[1]), 2, np.uint8)
    rows[:, 1:] = stored
    rows[1:, 1:] -= stored[:-1]
    header = _IHDR.pack(width, height, 16, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b""))
    replace_file(path, _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts))


def _chunk(kind: bytes, data: bytes) -> bytes:
    checksum = zlib.crc32(kind + data).to_bytes(4, "big")
    return len(data).to_bytes(4, "big") + kind + data + checksum
