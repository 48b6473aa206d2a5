"""Arrays of NumPy's files, of which nothing is unpickled, as finite numbers."""

from __future__ import annotations

import math
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np

from equilibria.run.data.storage import DataError, open_file, read_errors
from equilibria.zoo.io.archive import DAMAGED_ZIP, open_zip

LARGEST = 4 << 30
"""Bytes that a file may have or unpack to, and that all sequences of a folder may take."""


def read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file by name, or that of an .npy file, whose name is ``""``.

    No more is read than a header says, nor more than `LARGEST` bytes.

    Raises:
        DataError: If it is no such file, is damaged or too large, or has Python objects in it.
    """
    kind = path.suffix.lower()
    try:
        with read_errors(path), open_file(path) as file:
            if kind == ".npy":
                return {"": _array(file, path.stat().st_size, str(path))}
            with open_zip(file, path) as archive:
                return _members(archive, path)
    except (*DAMAGED_ZIP, ValueError) as error:
        raise DataError(
            f"{path} is no {kind} file of NumPy, or is damaged ({error}): remove or replace it"
        ) from None


def finite(array: np.ndarray, name: str) -> np.ndarray:
    """An array as float32, with a warning if rounding hides the variation of a column.

    Args:
        array: Of any shape.
        name: What it is, for messages.

    Raises:
        DataError: If it has something else than numbers, or one that is infinite or NaN, if only
            in float32; the message says where, counting from 0.
    """
    found = real(array, name)
    _refuse(~np.isfinite(found), array, name)
    columns = coarse([found.reshape(len(found), -1)]) if found.size else np.zeros(0, bool)
    for column in np.flatnonzero(columns)[:1]:
        warnings.warn(
            f"column {column} of {name} varies by less than float32 can tell at its magnitude: "
            "subtract its mean in the file",
            stacklevel=3,
        )
    return found.astype(np.float32)


def real(array: np.ndarray, name: str) -> np.ndarray:
    """An array as float64, in which NaN is left.

    Args:
        array: Of any shape.
        name: What it is, for messages.

    Raises:
        DataError: If it has something else than numbers, or one that is infinite, if only in
            float32; the message says where, counting from 0.
    """
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name} is an array of {array.dtype}: expected real numbers")
    found = array.astype(np.float64)
    largest = np.finfo(np.float32).max
    if found.size and max(np.nanmax(found), -np.nanmin(found)) > largest:
        _refuse(np.abs(found) > largest, array, name)
    return found


def _refuse(wrong: np.ndarray, array: np.ndarray, name: str) -> None:
    if wrong.any():
        place = tuple(np.argwhere(wrong)[0].tolist())
        raise DataError(
            f"{name} has {array[place]} at [{', '.join(map(str, place))}]: expected finite "
            "numbers; leave out or fill in what is missing"
        )


def whole(array: np.ndarray, name: str) -> np.ndarray:
    """An array of whole numbers as int64, whether they are stored as integers or as floats.

    Raises:
        DataError: If one is not whole, or not within int64.
    """
    if array.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            found = array.astype(np.int64)
        if np.array_equal(found, array):
            return found
    elif array.dtype.kind in "iu" and not (array > np.iinfo(np.int64).max).any():
        return array.astype(np.int64)
    raise DataError(f"{name} is an array of {array.dtype}: expected whole numbers, as int64")


def coarse(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Which columns float32 rounds by more than 0.1 % of their standard deviation, ``(columns,)``.

    Args:
        blocks: Finite numbers, ``(count, columns)`` each.
    """
    first = blocks[0][0].astype(np.float64)  # what is added up are the differences from it
    count = sum(map(len, blocks))
    mean = sum((block - first).sum(0) for block in blocks) / count
    squares = sum(np.square(block - first).sum(0) for block in blocks) / count
    spread = np.sqrt(np.maximum(squares - np.square(mean), 0))
    rounded = np.max([np.abs(block - block.astype(np.float32)).max(0) for block in blocks], 0)
    return (spread > 0) & (rounded > spread * 2.0**-10)


def check_size(size: int, what: str) -> None:
    """Raise DataError if that many bytes are too many; `what` has them."""
    if size > LARGEST:
        raise DataError(
            f"{what} {size:,} bytes, and at most {LARGEST:,} are read into memory: use fewer, "
            "shorter or coarser sequences"
        )


def _members(archive: zipfile.ZipFile, path: Path) -> dict[str, np.ndarray]:
    entries = archive.infolist()
    check_size(sum(entry.file_size for entry in entries), f"{path} unpacks to")
    found = {}
    for entry in entries:
        key = entry.filename.removesuffix(".npy")
        with archive.open(entry) as file:
            found[key] = _array(file, entry.file_size, f"{key} in {path}")
    return found


def _array(file: IO[bytes], size: int, name: str) -> np.ndarray:
    check_size(size, f"{name} has")
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format")
    read_header = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
    try:
        shape, fortran, dtype = read_header(file)
    except Exception as error:  # it is parsed as Python, and a damaged one can raise anything
        raise ValueError(f"its header: {error}") from None
    if dtype.hasobject:
        raise DataError(
            f"{name} is an array of Python objects, which are not unpickled: save numbers of one "
            "shape, padded where sequences differ in length, or each sequence in a file of its own"
        )
    expected = math.prod(shape) * dtype.itemsize
    content = file.read(min(expected, size))
    if len(content) != expected or file.read(1):
        raise ValueError(f"the header says {expected:,} bytes, and there are others")
    flat = np.frombuffer(content, dtype)
    return flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
