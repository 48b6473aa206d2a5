"""Cityscapes: street scenes of 50 cities with 19 classes (Cordts et al. 2016), behind a log-in."""

from __future__ import annotations

import numpy as np

from equilibria.run.data.storage import DataError, reading
from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.vision.data.segmentation.masks import (
    VOID,
    Pairs,
    SegmentationSet,
    Size,
    check_rgb,
    read_listed,
)

CLASSES = (
    (7, "road", (128, 64, 128)),
    (8, "sidewalk", (244, 35, 232)),
    (11, "building", (70, 70, 70)),
    (12, "wall", (102, 102, 156)),
    (13, "fence", (190, 153, 153)),
    (17, "pole", (153, 153, 153)),
    (19, "traffic light", (250, 170, 30)),
    (20, "traffic sign", (220, 220, 0)),
    (21, "vegetation", (107, 142, 35)),
    (22, "terrain", (152, 251, 152)),
    (23, "sky", (70, 130, 180)),
    (24, "person", (220, 20, 60)),
    (25, "rider", (255, 0, 0)),
    (26, "car", (0, 0, 142)),
    (27, "truck", (0, 0, 70)),
    (28, "bus", (0, 60, 100)),
    (31, "train", (0, 80, 100)),
    (32, "motorcycle", (0, 0, 230)),
    (33, "bicycle", (119, 11, 32)),
)
"""Label id, name and colour of the 19 classes that count (cityscapesScripts, labels.py)."""

NUMBERS = np.full(256, -1, np.int16)
NUMBERS[[*range(34), VOID]] = VOID  # label ids are 0 to 33
NUMBERS[[label for label, _, _ in CLASSES]] = np.arange(len(CLASSES))

COUNTS = {"train": 2975, "val": 500}
_IMAGE, _MASK = "_leftImg8bit.png", "_gtFine_labelIds.png"


def read(files: Files, *, size: Size | None = None, channels: int | None = None) -> SegmentationSet:
    """The finely annotated images of Cityscapes, or of as many cities as there are.

    The validation images are the test images, as is usual: the masks of the test images are not
    published.

    Raises:
        DataError: If a file is missing or damaged.
        ValueError: If `channels` is 1.
    """
    check_rgb(channels, files.entry.title)
    root = files.paths[0].parent.parent
    splits: dict[str, Pairs] = {}
    for split in COUNTS:
        folder = root / "leftImg8bit" / split
        with reading(folder):
            names = sorted(str(p.relative_to(folder)) for p in folder.glob(f"*/*{_IMAGE}"))
        if not names:
            raise DataError(f"{folder} has no CITY/*{_IMAGE}: {HOW}")
        splits[split] = [
            (f"leftImg8bit/{split}/{name}", f"gtFine/{split}/{name.removesuffix(_IMAGE)}{_MASK}")
            for name in names
        ]
    counts = {split: len(pairs) for split, pairs in splits.items()}
    part = "" if counts == COUNTS else f" ({counts['train']:,} training images)"
    _, labels, colours = zip(*CLASSES, strict=True)
    return read_listed(
        files.title + part, root, splits, size=size, numbers=NUMBERS, labels=labels, colours=colours
    )


HOW = (
    "Cityscapes cannot be downloaded without a log-in: register at "
    "https://www.cityscapes-dataset.com, get leftImg8bit_trainvaltest.zip and "
    "gtFine_trainvaltest.zip, and unpack both to cityscapes/leftImg8bit/SPLIT/CITY/ and "
    "cityscapes/gtFine/SPLIT/CITY/. Then name the folder that contains cityscapes with --data-dir "
    "or EQUILIBRIA_DATA"
)

CITYSCAPES = Entry(
    name="cityscapes",
    title="Cityscapes",
    read=read,
    remotes=(
        Remote(
            files=("leftImg8bit/train/", "leftImg8bit/val/", "gtFine/train/", "gtFine/val/"),
            licence="non-commercial research, see https://www.cityscapes-dataset.com/license",
            inside=("cityscapes",),
        ),
    ),
    how_to_get=HOW,
)
