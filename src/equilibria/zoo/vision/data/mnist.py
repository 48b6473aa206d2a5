"""MNIST: 70,000 handwritten digits of 28 x 28 pixels (LeCun, Cortes and Burges 1998)."""

import numpy as np
import torch

from equilibria.run.data.dataset import Dataset, Split
from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.vision.data import idx

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


def read(files: Files) -> Dataset:
    """All 60,000 training and 10,000 test images in their original order.

    Returns:
        Images as float32 in [0, 1], ``(count, 1, 28, 28)``, and targets as int64, ``(count,)``.
    """
    images, labels, test_images, test_labels = map(idx.read, files.paths)
    splits = {"train": _split(images, labels), "test": _split(test_images, test_labels)}
    return Dataset.of(files, splits, tuple("0123456789"))


def _split(images: np.ndarray, labels: np.ndarray) -> Split:
    inputs = torch.tensor(images).unsqueeze(1).float().div_(255)
    return Split(inputs, torch.tensor(labels, dtype=torch.int64))


MNIST = Entry(
    name="mnist",
    title="MNIST",
    read=read,
    remotes=(
        Remote(
            files=tuple(name for name in _CHECKSUMS if name.endswith(".gz")),
            # The official address, and the copy that torchvision downloads from.
            addresses=(
                "http://yann.lecun.com/exdb/mnist/",
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
            ),
            checksums=_CHECKSUMS,
            licence="CC BY-SA 3.0",
            size="11 MB",
            largest=16 + 60_000 * 28 * 28,
        ),
    ),
)
