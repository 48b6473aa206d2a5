"""Handwritten digits of 8 x 8 pixels that come with scikit-learn: nothing to download."""

import functools
from typing import Any, cast

import torch

from equilibria.run.data.dataset import Dataset, Split
from equilibria.zoo.io.remote import Entry, Files, Remote


def read(files: Files) -> Dataset:
    """Optical recognition of handwritten digits (Alpaydin and Kaynak 1998): 1,797 images.

    A quarter of the images, stratified by class, is the test split:
    ``train_test_split(test_size=0.25, random_state=0, stratify=y)``, 1,347 and 450 images.

    Returns:
        Images as float32 in [0, 1], ``(count, 1, 8, 8)``, and targets as int64, ``(count,)``.
    """
    # Imported here: scikit-learn takes a second to import.
    from sklearn.model_selection import train_test_split

    images, targets = _load_bundled()
    inputs = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    whole = Split(inputs, torch.tensor(targets, dtype=torch.int64))
    train, test = train_test_split(
        range(len(targets)), test_size=0.25, random_state=0, stratify=targets
    )
    parts = {"train": whole.select(torch.tensor(train)), "test": whole.select(torch.tensor(test))}
    return Dataset.of(files, parts, tuple("0123456789"))


@functools.cache
def _load_bundled() -> tuple[Any, Any]:
    """Images and targets as scikit-learn parses them from a text, which takes a while."""
    from sklearn.datasets import load_digits

    return cast(tuple[Any, Any], load_digits(return_X_y=True))


DIGITS = Entry(
    name="digits",
    title="Digits",
    read=read,
    remotes=(
        Remote(
            files=(), addresses=("scikit-learn, sklearn.datasets.load_digits",), license="CC BY 4.0"
        ),
    ),
)
