"""ImageNet (ILSVRC 2012): 1.28 million photographs of 1,000 classes, behind a log-in."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from equilibria.data import locate
from equilibria.data.errors import DataError
from equilibria.data.images.folder import ImageFolder, load

NAME = "imagenet"
CLASSES = 1_000
IMAGES = {"train": 1_281_167, "test": 50_000}

_HOW = (
    "ImageNet cannot be downloaded without a log-in: register at https://image-net.org, get "
    "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, and unpack them to "
    "imagenet/train/WNID/*.JPEG and imagenet/val/WNID/*.JPEG, a folder a class (the validation "
    "images come in one folder: the development kit tells the class of each). Then name the folder "
    "that imagenet is in with --data-dir or EQUILIBRIA_DATA"
)


def find(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder that has ``train/WNID/*.JPEG`` and ``val/WNID/*.JPEG``.

    Args:
        data_dir: Folder that is looked in before ``$EQUILIBRIA_DATA`` and the user's cache; or the
            folder itself.

    Raises:
        DataError: If there is none; the message says how to get it.
    """
    places = locate.folders(NAME, data_dir)
    for place in places:
        named = place.name.lower() == NAME or any((place / "train").glob("n0144*"))
        if named and (place / "train").is_dir():
            if not (place / "val").is_dir():
                raise DataError(f"{place} has a folder train and no val beside it. {_HOW}")
            return place
    raise DataError(f"imagenet: there is no folder {' or '.join(map(str, places[::2]))}. {_HOW}")


def folder(
    data_dir: str | os.PathLike[str] | None = None,
    *,
    size: int | None = None,
    channels: int | None = None,
    share: float = 1.0,
) -> ImageFolder:
    """The images of ImageNet, or of as many of its classes as there are; see `folder.load`.

    The validation images are the test part, as everybody's: the answers for those to test on were
    never given away. A few photographs are grey or CMYK: all are read as RGB.

    Raises:
        DataError: If they are not there, or not in a folder a class.
    """
    found = load(find(data_dir), size=size, channels=channels or 3, share=share, title="ImageNet")
    counts = {"train": len(found.train), "test": len(found.test)}
    if found.classes == CLASSES and counts == IMAGES:
        return found
    title = f"ImageNet ({found.classes:,} classes, {counts['train']:,} training images)"
    return replace(found, title=title)
