"""Data sets as plain tensors, read from disk or downloaded with a checksum."""

import difflib
import os
from collections.abc import Callable

from equilibria.data import copy_memory, digits, images, mnist, text
from equilibria.data.dataset import Dataset, Samples, Split
from equilibria.data.errors import DataError
from equilibria.data.fetch import fetch
from equilibria.data.images.cifar import CIFAR10, CIFAR100

__all__ = [
    "DataError",
    "Dataset",
    "Samples",
    "Split",
    "available",
    "copy_memory",
    "fetch",
    "images",
    "load",
    "text",
]

_LOADERS: dict[str, Callable[[str | os.PathLike[str] | None, bool], Dataset]] = {
    "cifar10": CIFAR10.load,
    "cifar100": CIFAR100.load,
    "digits": digits.load,
    "mnist": mnist.load,
}


def available() -> list[str]:
    """The names that `load` knows, sorted."""
    return sorted(_LOADERS)


def load(
    name: str, data_dir: str | os.PathLike[str] | None = None, download: bool = True
) -> Dataset:
    """Read a data set, and download it first where it is not on disk.

    Args:
        name: One of `available()`.
        data_dir: Folder that is looked in before ``$EQUILIBRIA_DATA`` and the user's cache.
        download: Whether what is missing may be downloaded.

    Raises:
        ValueError: If no data set goes by that name; the message names the nearest.
        DataError: If the data are missing, damaged or out of reach.
    """
    if name not in _LOADERS:
        near = difflib.get_close_matches(name, _LOADERS, n=1, cutoff=0)
        raise ValueError(
            f"no data set is called {name!r}: did you mean {near[0]!r}? "
            f"There are {', '.join(available())}"
        )
    return _LOADERS[name](data_dir, download)
