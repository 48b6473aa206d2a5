"""MNIST: 70,000 handwritten digits of 28 x 28 pixels (LeCun, Cortes and Burges 1998)."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch

from equilibria.run.data.dataset import Dataset, Split
from equilibria.run.data.storage import DataError, open_file, read_errors
from equilibria.zoo.io.remote import Entry, Files, Remote

# md5 of each file as it is downloaded (torchvision, `datasets/mnist.py`), and of its uncompressed
# content (secml, `c_dataloader_mnist.py`).
_CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "md5:f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte.gz": "md5:d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte.gz": "md5:9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte.gz": "md5:ec29112dd5afa0611ce80d1b7f02629c",
    "train-images-idx3-ubyte": "md5:6bbc9ace898e44ae57da46a324031adb",
    "train-labels-idx1-ubyte": "md5:a25bea736e30d166cdddb491f175f624",
    "t10k-images-idx3-ubyte": "md5:2646ac647ad5339dbf082846283269ea",
    "t10k-labels-idx1-ubyte": "md5:27ae3e4e09519cfbb04c329615203637",
}


def read_mnist(files: Files) -> Dataset:
    """All 60,000 training and 10,000 test images in their original order.

    Returns:
        Images as float32 in [0, 1], ``(count, 1, 28, 28)``, and targets as int64, ``(count,)``.
    """
    images, labels, test_images, test_labels = map(read_idx, files.paths)
    splits = {"train": _make_split(images, labels), "test": _make_split(test_images, test_labels)}
    return Dataset.of(files, splits, tuple("0123456789"))


def _make_split(images: np.ndarray, labels: np.ndarray) -> Split:
    inputs = torch.tensor(images).unsqueeze(1).float().div_(255)
    return Split(inputs, torch.tensor(labels, dtype=torch.int64))


MNIST = Entry(
    name="mnist",
    title="MNIST",
    read=read_mnist,
    remotes=(
        Remote(
            files=tuple(name for name in _CHECKSUMS if name.endswith(".gz")),
            # The official address, and the copy that torchvision downloads from.
            addresses=(
                "http://yann.lecun.com/exdb/mnist/",
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
            ),
            checksums=_CHECKSUMS,
            license="CC BY-SA 3.0",
            size="11 MB",
            largest=16 + 60_000 * 28 * 28,
        ),
    ),
)


# --- idx ------------------------------------------------------------------------------------------

# The idx format of the MNIST files: a header, then the entries as they lie in memory.


_UNSIGNED_BYTE = 0x08
_AXES = 32  # as many as every version of numpy has
_BLOCK = 1 << 20


def read_idx(path: Path) -> np.ndarray:
    """Read an idx file of unsigned bytes, gzipped where its name ends in ``.gz``.

    The header is two zero bytes, one byte for the type of an entry, one for the number of axes
    and a big-endian uint32 for the length of each axis. No more is unpacked than it says.

    Returns:
        An array of uint8 in the shape that the header gives.

    Raises:
        DataError: If the file cannot be read, is damaged, or is another one.
    """
    with read_errors(path, gzip.BadGzipFile, EOFError, zlib.error), open_file(path) as stored:
        if path.suffix != ".gz":
            return _read_idx(stored, path)
        with gzip.open(stored) as file:
            return _read_idx(cast(BinaryIO, file), path)


def _read_idx(file: BinaryIO, path: Path) -> np.ndarray:
    head = file.read(4)
    if len(head) < 4 or head[:3] != bytes((0, 0, _UNSIGNED_BYTE)):
        raise DataError(
            f"{path} is not an idx file of unsigned bytes: it begins with "
            f"{head.hex(' ') or 'nothing'}, expected 00 00 08 and the number of axes"
        )
    axes = head[3]
    if axes > _AXES:
        raise DataError(f"{path} is damaged: its header says {axes} axes, at most {_AXES} can be")
    lengths = file.read(4 * axes)
    if len(lengths) < 4 * axes:
        raise DataError(f"{path} is truncated: its header ends after {4 + len(lengths)} bytes")
    shape = struct.unpack(f">{axes}I", lengths)
    count = math.prod(shape)  # in Python's integers, which do not overflow
    content = bytearray()
    while len(content) <= count and (block := file.read(min(_BLOCK, count + 1 - len(content)))):
        content += block
    if len(content) != count:
        found = "more" if len(content) > count else f"{len(content)}"
        raise DataError(
            f"{path} holds {found} entries, but its header says {count} in the shape {shape}: "
            "delete it and run again"
        )
    if count == 0:
        raise DataError(f"{path} is empty: delete it and run again")
    return np.frombuffer(content, np.uint8).reshape(shape)
