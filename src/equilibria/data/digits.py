"""Handwritten digits of 8 x 8 pixels that come with scikit-learn: nothing to download."""

import os

import torch

from equilibria.data.dataset import Dataset, Split, digest


def load(data_dir: str | os.PathLike[str] | None = None, download: bool = True) -> Dataset:
    """Optical recognition of handwritten digits (Alpaydin and Kaynak 1998): 1,797 images.

    A quarter of the images, stratified by class, is the test split:
    ``train_test_split(test_size=0.25, random_state=0, stratify=y)``, 1,347 and 450 images.

    Args:
        data_dir: Not needed: the images are part of scikit-learn.
        download: Not needed either.

    Returns:
        Images as float32 in [0, 1], ``(count, 1, 8, 8)``, and targets as int64, ``(count,)``.
    """
    # Imported here: scikit-learn takes a second that nobody else should wait for.
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, targets = load_digits(return_X_y=True)
    inputs = torch.as_tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    train, test = train_test_split(
        range(len(targets)), test_size=0.25, random_state=0, stratify=targets
    )
    whole = Split(inputs, torch.as_tensor(targets, dtype=torch.int64))
    splits = [Split(*whole[torch.tensor(index)]) for index in (train, test)]
    return Dataset(
        name="digits",
        title="Digits",
        train=splits[0],
        test=splits[1],
        classes=10,
        labels=tuple("0123456789"),
        shape=(1, 8, 8),
        source="scikit-learn, sklearn.datasets.load_digits",
        checksum=digest(*splits),
    )
