"""The two formats in which the CIFAR images are published: records of bytes, and pickles."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from equilibria.run.data.errors import DataError

PIXELS = 3 * 32 * 32


def records(content: bytes, name: str, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the binary version: for each image its labels, a byte each, and its pixels.

    Args:
        content: Of the file.
        name: Of the file, for messages.
        labels: Bytes before the pixels, the last of which is the label that counts: 1 in
            CIFAR-10, 2 in CIFAR-100, whose first is the superclass.

    Returns:
        Pixels as uint8, ``(count, 3, 32, 32)``, and labels as uint8, ``(count,)``.

    Raises:
        DataError: If the file does not consist of whole records.
    """
    if not content or len(content) % (labels + PIXELS):
        raise DataError(
            f"{name} has {len(content)} bytes, not a multiple of the {labels + PIXELS} of one "
            "image: it is truncated or the wrong file"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, labels + PIXELS)
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1]


def pickled(content: bytes, name: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Read the Python version: a pickled dictionary of arrays and lists.

    Only numpy arrays and pickle's built-in types are created, and no other function is called,
    whatever the file asks for.

    The labels are under `key`; everything else is as for `records`.

    Raises:
        DataError: If the file is something else.
    """
    try:
        batch = _Arrays(io.BytesIO(content), encoding="latin1").load()
        images, labels = np.asarray(batch["data"]), np.asarray(batch[key])
        return images.astype(np.uint8, casting="safe").reshape(-1, 3, 32, 32), labels
    except Exception as error:  # a damaged pickle can raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{name} is damaged or not a batch of CIFAR images ({reason})") from error


class _Arrays(pickle.Unpickler):
    """Makes arrays of numpy and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed")
        return _ALLOWED[module, name]


def _reconstruct(cls: type, shape: tuple[int, ...], code: bytes | str) -> np.ndarray:
    """Make the empty array that a pickle fills; what numpy's own function does."""
    if cls is not np.ndarray:
        raise pickle.UnpicklingError(f"an array of type {cls!r}")
    return np.ndarray.__new__(np.ndarray, shape, code if isinstance(code, str) else code.decode())


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): lambda text, encoding: text.encode(encoding),
}
