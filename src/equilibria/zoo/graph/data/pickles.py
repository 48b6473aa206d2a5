"""Python 2 pickles of arrays and lists, read without running anything that they name."""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from equilibria.run.data.storage import DataError, open_file, read_errors

LARGEST = 1 << 28
"""Bytes that a file may have: the largest of Planetoid has 40 MB."""

# What protocol 2 writes for dictionaries, lists, tuples, numbers, strings, arrays and sparse
# matrices. A memo beyond the length of the file would reserve memory for nothing.
_STEPS = frozenset(
    [
        *("PROTO", "STOP", "MARK", "GLOBAL", "REDUCE", "BUILD", "NEWOBJ"),
        *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
        *("BINSTRING", "SHORT_BINSTRING", "BINUNICODE"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
        *("EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS"),
        *("BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET"),
    ]
)


class _Type:
    """Stands in for numpy.dtype."""

    def __init__(self, name: str, *_: object) -> None:
        self.name, self.order = name, "="

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.order = state[1]

    def numpy(self) -> np.dtype[Any]:
        """The type; of numbers alone."""
        if not (self.name[:1] in "biuf" and self.name[1:].isdecimal() and self.order in "<>=|"):
            raise ValueError(f"an array of {self.name!r}")
        return np.dtype(self.order + self.name)


class _Array:
    """Stands in for numpy.ndarray."""

    value: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, kind, fortran, content = state
        dtype = kind.numpy()
        data = content.encode("latin-1") if isinstance(content, str) else bytes(content)
        if len(data) != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{len(data)} bytes for an array of shape {shape}")
        self.value = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


class _Matrix:
    """Stands in for scipy.sparse.csr_matrix, whose attributes are its state."""


def _array(*_: object) -> _Array:
    """Stands in for the function that makes an empty array."""
    return _Array()


def _mapping(*_: object) -> dict[Any, Any]:
    """Stands in for collections.defaultdict."""
    return {}


_NAMES: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("scipy.sparse.csr", "csr_matrix"): _Matrix,
    ("collections", "defaultdict"): _mapping,
    ("__builtin__", "list"): list,
}


class _Restricted(pickle.Unpickler):
    """Knows stand-ins for a few names, and no other."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in _NAMES:
            raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")
        return _NAMES[module_name, global_name]


def read(path: Path) -> Any:
    """The content of a pickle: an array, a sparse matrix as a dense array, or lists by number.

    No object of the file is made: names of arrays and matrices are replaced by classes that keep
    bytes, and a pickle with any other name or step is refused before it is read.

    Raises:
        DataError: If the file is damaged, too large, or holds anything else.
    """
    with read_errors(path), open_file(path) as file:
        content = file.read(LARGEST + 1)
    try:
        if len(content) > LARGEST:
            raise ValueError(f"more than {LARGEST:,} bytes")
        _check(content)
        return _plain(_Restricted(io.BytesIO(content), encoding="latin-1").load())
    except Exception as error:  # a damaged pickle can raise anything
        raise DataError(
            f"{path} is damaged or no pickle of arrays ({error}): nothing of it was run; delete it "
            "and run again"
        ) from None


def _check(content: bytes) -> None:
    for step, argument, _ in pickletools.genops(content):
        if step.name not in _STEPS:
            raise ValueError(f"it has the step {step.name}")
        if step.name == "LONG_BINPUT" and int(argument or 0) > len(content):
            raise ValueError("it numbers more objects than it has bytes")


def _plain(found: Any) -> Any:
    if isinstance(found, _Array):
        return found.value
    if isinstance(found, _Matrix):
        return _dense(vars(found))
    if isinstance(found, dict):
        return {int(key): [int(each) for each in row] for key, row in found.items()}
    raise ValueError(f"a {type(found).__name__}")


def _dense(state: dict[str, Any]) -> np.ndarray:
    rows, columns = (int(each) for each in state["_shape"])
    indptr, indices, data = (state[name].value for name in ("indptr", "indices", "data"))
    return dense(indptr, indices, data, (rows, columns))


def dense(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray, shape: tuple[int, int]
) -> np.ndarray:
    """The matrix ``(rows, columns)``, float32, whose rows are compressed.

    Args:
        indptr: Where each row begins and ends in the others, ``(rows + 1,)``.
        indices: Column of each entry.
        data: The entries.
        shape: Of the matrix.

    Raises:
        ValueError: If these do not fit together, or it would take more than 4 GiB.
    """
    rows, columns = shape
    counts = np.diff(indptr.astype(np.int64))
    fits = (
        indptr.shape == (rows + 1,)
        and indices.shape == data.shape == (int(indptr[-1]),)
        and int(indptr[0]) == 0
        and bool((counts >= 0).all())
        and (not len(indices) or (int(indices.min()) >= 0 and int(indices.max()) < columns))
    )
    if not fits or rows * columns > 1 << 30:
        raise ValueError(f"rows that do not make a matrix of shape {shape}")
    made = np.zeros((rows, columns), np.float32)
    np.add.at(made, (np.repeat(np.arange(rows), counts), indices), data)
    return made
