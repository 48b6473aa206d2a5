"""ImageNet (ILSVRC 2012): 1.28 million photographs of 1,000 classes, which require a log-in."""

from __future__ import annotations

from dataclasses import replace

from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.vision.data.images.folder import ImageFolder, load

CLASSES = 1_000
IMAGES = {"train": 1_281_167, "test": 50_000}


def read(
    files: Files, *, size: int | None = None, channels: int | None = None, share: float = 1.0
) -> ImageFolder:
    """The images of ImageNet, or of as many of its classes as there are; see
    `zoo.vision.data.images.load`.

    The validation images are the test part, as is usual: the labels of the test images were never
    published. A few photographs are grey or CMYK: all are read as RGB.
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
    licence="non-commercial research and education, see https://image-net.org",
    inside=("imagenet",),
)

IMAGENET = Entry(
    name="imagenet",
    title="ImageNet",
    read=read,
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
