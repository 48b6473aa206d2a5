"""Image data sets: named ones, and a user's folder with one subfolder per class.

    pets = images.load("pets", size=64)               # pets/cat/*.jpg, pets/dog/*.jpg
    inputs, targets = pets.train[:16]                 # decoded now, float32 in [0, 1]

Only the arrays of CIFAR's Python version are ever unpickled.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from equilibria.run.data.dataset import UserData
from equilibria.zoo.io import headers, layout
from equilibria.zoo.io.image_files import ImageFiles
from equilibria.zoo.io.remote import Entry, Files, Remote

__all__ = ["ImageFiles", "ImageFolder", "load"]


@dataclass(frozen=True, kw_only=True)
class ImageFolder:
    """Images of a folder, on disk until they are used.

    Attributes:
        title: Its name in tables: the name of the folder.
        train: Training images.
        test: Test images.
        valid: Validation images; None if the folder has none.
        labels: Names of the classes, in the order of their numbers.
        shape: Channels, height and width of an image.
        smallest: Name of the smallest file, with its height and width in pixels.
        checksum: ``sha256:...`` over the names of all files and, up to 20,000 files, all that is
            in them; of more, over their lengths.
    """

    title: str
    train: ImageFiles
    test: ImageFiles
    valid: ImageFiles | None
    labels: tuple[str, ...]
    shape: tuple[int, int, int]
    smallest: str
    checksum: str

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.labels)


def load(
    root: str | os.PathLike[str],
    *,
    size: int | None = None,
    channels: int | None = None,
    share: float = 1.0,
    title: str | None = None,
    whole: bool = False,
    area: bool = False,
) -> ImageFolder:
    """Find the images of a folder and check from their headers that they are compatible.

    `layout.read` defines what the folder must be. Images are rotated upright according to Exif.

    Args:
        root: The folder.
        size: Pixels per side to which the central square of an image is resized; None for images
            that all have the same size, and are left as they are.
        channels: 3 or 1, to convert all images to RGB or greyscale; None for images that are all
            RGB or all greyscale.
        share: The part of the shorter side that the central square covers.
        title: Its name in tables; None for the folder's name.
        whole: Whether all images of a folder without parts are test images, to evaluate a model on
            that has learned from others; there are then no training images.
        area: Whether images are brought to `size` as `resize` does, by means over areas.

    Raises:
        DataError: If the folder has no classes, a class has no images, a file is not an image, or
            images differ in size or colours; the message names the file.
        ValueError: If `size` is below 1 or `channels` neither 3 nor 1.
    """
    if size is not None and size < 1:
        raise ValueError(f"size is {size}: expected at least 1 pixel per side")
    if channels not in (None, 1, 3):
        raise ValueError(f"channels is {channels}: expected 3 (RGB), 1 (grey), or None")
    found = layout.read(Path(root).expanduser(), whole=whole)
    names = [name for part in found.names.values() for name in part]
    scanned, checksum = headers.scan(found.root, names)
    if channels is None:
        channels = headers.channels_of(found.root, names, scanned)
    else:
        headers.check_depth(found.root, names, scanned)
    high, wide = (size, size) if size else headers.size_of(found.root, names, scanned)
    parts = {
        part: ImageFiles(
            root=found.root,
            names=found.names[part],
            targets=torch.tensor(found.targets[part], dtype=torch.int64),
            shape=(channels, high, wide),
            fits=size is None,
            share=share,
            area=area,
        )
        for part in found.names
    }
    smallest, name = min(zip(scanned, names, strict=True), key=lambda pair: min(pair[0][:2]))
    return ImageFolder(
        title=title or found.root.resolve().name,
        train=parts[layout.TRAIN],
        test=parts[layout.TEST],
        valid=parts.get("valid"),
        labels=found.labels,
        shape=(channels, high, wide),
        smallest=f"{found.root / name} ({smallest.height} x {smallest.width} pixels)",
        checksum=checksum,
    )


OWN = UserData(load, layout.EXPECTED)
"""A user's folder of images."""


# --- imagenet -------------------------------------------------------------------------------------

CLASSES = 1_000
IMAGES = {"train": 1_281_167, "test": 50_000}


def read_imagenet(
    files: Files, *, size: int | None = None, channels: int | None = None, share: float = 1.0
) -> ImageFolder:
    """The images of ImageNet, or of as many of its classes as there are; see
    `zoo.vision.data.images.load`.

    The validation images are the test part, as is usual: the labels of the test images were never
    published. A few photographs are grey or CMYK: all are read_imagenet as RGB.
    """
    root = next(path for path in files.paths[0].parents if (path / "train").is_dir())
    found = load(root, size=size, channels=channels or 3, share=share, title=files.title)
    counts = {"train": len(found.train), "test": len(found.test)}
    if found.classes == CLASSES and counts == IMAGES:
        return found
    part = f"({found.classes:,} classes, {counts['train']:,} training images)"
    return replace(found, title=f"{found.title} {part}")


_NAMED = Remote(
    files=("train/", "val/"),
    license="non-commercial research and education, see https://image-net.org",
    inside=("imagenet",),
)

IMAGENET = Entry(
    name="imagenet",
    title="ImageNet",
    read=read_imagenet,
    # A folder of another name is known by its first class.
    remotes=(_NAMED, replace(_NAMED, files=("train/n01440764/", "val/n01440764/"), inside=(".",))),
    how_to_get=(
        "ImageNet cannot be downloaded without a log-in: register at https://image-net.org, get "
        "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar, and unpack them to "
        "imagenet/train/WNID/*.JPEG and imagenet/val/WNID/*.JPEG, one folder per class (the "
        "validation images come in one folder: the development kit lists the class of each). Then "
        "name the folder that contains imagenet with --data-dir or EQUILIBRIA_DATA"
    ),
)
