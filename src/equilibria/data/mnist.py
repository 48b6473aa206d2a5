"""MNIST: 70,000 handwritten digits of 28 x 28 pixels (LeCun, Cortes and Burges 1998)."""

import os
from dataclasses import dataclass

import numpy as np
import torch

from equilibria.data import idx, locate
from equilibria.data.dataset import Dataset, Split, digest
from equilibria.data.errors import DataError
from equilibria.data.fetch import fetch

# The official address first; the second is the copy that torchvision downloads from.
ADDRESSES = (
    "http://yann.lecun.com/exdb/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)


@dataclass(frozen=True)
class File:
    """One file of the data set.

    Attributes:
        name: Its name without ``.gz``.
        gz: md5 of the official file as it is downloaded (torchvision, ``datasets/mnist.py``).
        raw: md5 of its uncompressed content, for copies that somebody else zipped (secml,
            ``c_dataloader_mnist.py``).
    """

    name: str
    gz: str
    raw: str


FILES = (
    File(
        "train-images-idx3-ubyte",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "6bbc9ace898e44ae57da46a324031adb",
    ),
    File(
        "train-labels-idx1-ubyte",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "a25bea736e30d166cdddb491f175f624",
    ),
    File(
        "t10k-images-idx3-ubyte",
        "9fb629c4189551a2d022fa330f9573f3",
        "2646ac647ad5339dbf082846283269ea",
    ),
    File(
        "t10k-labels-idx1-ubyte",
        "ec29112dd5afa0611ce80d1b7f02629c",
        "27ae3e4e09519cfbb04c329615203637",
    ),
)


def load(data_dir: str | os.PathLike[str] | None = None, download: bool = True) -> Dataset:
    """All 60,000 training and 10,000 test images in their original order.

    The four idx files, gzipped or not, are looked for in `data_dir`, then ``$EQUILIBRIA_DATA``,
    then the user's cache; what is missing is downloaded (11 MB) into the first of these. The
    content of every file is checked each time it is read.

    Args:
        data_dir: Folder that holds the files, or a folder ``mnist`` that holds them.
        download: Whether what is missing may be downloaded.

    Returns:
        Images as float32 in [0, 1], ``(count, 1, 28, 28)``, and targets as int64, ``(count,)``.

    Raises:
        DataError: If a file is missing and cannot be downloaded, or is damaged.
    """
    train_images, train_labels, test_images, test_labels = (
        _read(file, data_dir, download) for file in FILES
    )
    train, test = _split(train_images, train_labels), _split(test_images, test_labels)
    return Dataset(
        name="mnist",
        title="MNIST",
        train=train,
        test=test,
        classes=10,
        labels=tuple("0123456789"),
        shape=tuple(train.inputs.shape[1:]),
        source=ADDRESSES[0],
        checksum=digest(train, test),
    )


def _split(images: np.ndarray, labels: np.ndarray) -> Split:
    inputs = torch.tensor(images).unsqueeze(1).float().div_(255)
    return Split(inputs, torch.tensor(labels, dtype=torch.int64))


def _read(file: File, data_dir: str | os.PathLike[str] | None, download: bool) -> np.ndarray:
    places = locate.folders("mnist", data_dir)
    path = locate.find((f"{file.name}.gz", file.name), places)
    if path is not None:
        return idx.read(path, file.raw)
    if not download:
        raise DataError(
            f"mnist: {file.name}.gz is in none of {', '.join(map(str, places))}. Allow the "
            f"download, or fetch it from {ADDRESSES[0]} and name its folder with --data-dir or "
            "EQUILIBRIA_DATA"
        )
    target = places[0] / f"{file.name}.gz"
    urls = [f"{address}{file.name}.gz" for address in ADDRESSES]
    return idx.read(fetch(urls, target, checksum=f"md5:{file.gz}"), file.raw)
