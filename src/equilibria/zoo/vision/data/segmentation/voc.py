"""Pascal VOC 2012: photographs with 20 kinds of objects and background (Everingham et al. 2012)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from equilibria import files
from equilibria.run.data.storage import DataError, reading, writing
from equilibria.zoo.io import archive
from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.vision.data.segmentation.masks import (
    VOID,
    SegmentationSet,
    Size,
    check_rgb,
    palette,
    read_listed,
)

LABELS = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat"),
    *("chair", "cow", "dining table", "dog", "horse", "motorbike", "person", "potted plant"),
    *("sheep", "sofa", "train", "tv monitor"),
)
NUMBERS = np.array([*range(len(LABELS)), *[-1] * (VOID - len(LABELS)), VOID], np.int16)

ARCHIVE = "VOCtrainval_11-May-2012.tar"
FOLDER = "VOCdevkit/VOC2012"
LARGEST = 4 << 30
_NEEDED = ("ImageSets/Segmentation/", "JPEGImages/", "SegmentationClass/")


def read(files: Files, *, size: Size | None = None, channels: int | None = None) -> SegmentationSet:
    """The 1,464 training and 1,449 validation images of the segmentation task, of several sizes.

    The validation images are the test images: the masks of the test images are not published. The
    archive is unpacked next to itself once.

    Raises:
        DataError: If a file is missing or damaged.
        ValueError: If `channels` is 1.
    """
    check_rgb(channels, files.entry.title)
    place = files.paths[0]
    root = _unpack(place) if place.name == ARCHIVE else place.parent.parent
    splits = {split: _pairs(root, split) for split in ("train", "val")}
    colours = palette(len(LABELS))
    return read_listed(
        files.title, root, splits, size=size, numbers=NUMBERS, labels=LABELS, colours=colours
    )


def _pairs(root: Path, split: str) -> list[tuple[str, str]]:
    listed = root / "ImageSets" / "Segmentation" / f"{split}.txt"
    with reading(listed):
        names = listed.read_text("utf-8").split()
    if not names:
        raise DataError(f"{listed} lists no images: unpack the data set again")
    return [(f"JPEGImages/{name}.jpg", f"SegmentationClass/{name}.png") for name in names]


def _unpack(path: Path) -> Path:
    """The folder of an archive, unpacked next to it: whole or not at all."""
    root = path.parent / FOLDER
    if root.is_dir():
        return root
    with writing(root, "--data-dir or EQUILIBRIA_DATA"):
        root.parent.mkdir(parents=True, exist_ok=True)
        with files.whole_folder(root) as part:
            wanted = tuple(f"{FOLDER}/{name}" for name in _NEEDED)
            for name, content in archive.members(path, lambda n: n.startswith(wanted), LARGEST):
                target = (part / Path(name).relative_to(FOLDER)).resolve()
                if not target.is_relative_to(part.resolve()):
                    raise DataError(f"{path} has a file {name} that leads out of its folder")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
    return root


_PACKED = Remote(
    files=(ARCHIVE,),
    addresses=("http://host.robots.ox.ac.uk/pascal/VOC/voc2012/",),
    # From torchvision, datasets/voc.py.
    checksums={ARCHIVE: "md5:6cd6e144f989b92b3379bac3b3de84fd"},
    licence="Flickr's terms of use; cite Everingham et al. 2012",
    size="2.0 GB",
    inside=("voc",),
    largest=LARGEST,
)

VOC = Entry(
    name="voc",
    title="Pascal VOC 2012",
    read=read,
    remotes=(
        _PACKED,
        _PACKED.as_folder(_NEEDED, FOLDER, f"voc/{FOLDER}", "VOC2012", checksums={}),
    ),
)
