"""Named data sets with masks: Cityscapes, Pascal VOC 2012, and shapes that are drawn."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import torch

from equilibria.files import whole_folder
from equilibria.run.data.storage import DataError, read_errors, write_errors
from equilibria.zoo.io import archive
from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.vision.data.segmentation.masks import (
    VOID,
    Kept,
    MaskedImages,
    Pairs,
    SegmentationSet,
    Size,
    check_rgb,
    nearest,
    palette,
    read_listed,
)

CITYSCAPES_CLASSES = (
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

CITYSCAPES_NUMBERS = np.full(256, -1, np.int16)
CITYSCAPES_NUMBERS[[*range(34), VOID]] = VOID  # label ids are 0 to 33
CITYSCAPES_NUMBERS[[label for label, _, _ in CITYSCAPES_CLASSES]] = np.arange(
    len(CITYSCAPES_CLASSES)
)

CITYSCAPES_COUNTS = {"train": 2975, "val": 500}
_IMAGE, _MASK = "_leftImg8bit.png", "_gtFine_labelIds.png"


def read_cityscapes(
    files: Files, *, size: Size | None = None, channels: int | None = None
) -> SegmentationSet:
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
    for split in CITYSCAPES_COUNTS:
        folder = root / "leftImg8bit" / split
        with read_errors(folder):
            names = sorted(str(p.relative_to(folder)) for p in folder.glob(f"*/*{_IMAGE}"))
        if not names:
            raise DataError(f"{folder} has no CITY/*{_IMAGE}: {CITYSCAPES_HOW}")
        splits[split] = [
            (f"leftImg8bit/{split}/{name}", f"gtFine/{split}/{name.removesuffix(_IMAGE)}{_MASK}")
            for name in names
        ]
    counts = {split: len(pairs) for split, pairs in splits.items()}
    part = "" if counts == CITYSCAPES_COUNTS else f" ({counts['train']:,} training images)"
    _, labels, colors = zip(*CITYSCAPES_CLASSES, strict=True)
    return read_listed(
        files.title + part,
        root,
        splits,
        size=size,
        numbers=CITYSCAPES_NUMBERS,
        labels=labels,
        colors=colors,
    )


CITYSCAPES_HOW = (
    "Cityscapes cannot be downloaded without a log-in: register at "
    "https://www.cityscapes-dataset.com, get leftImg8bit_trainvaltest.zip and "
    "gtFine_trainvaltest.zip, and unpack both to cityscapes/leftImg8bit/SPLIT/CITY/ and "
    "cityscapes/gtFine/SPLIT/CITY/. Then name the folder that contains cityscapes with --data-dir "
    "or EQUILIBRIA_DATA"
)

CITYSCAPES = Entry(
    name="cityscapes",
    title="Cityscapes",
    read=read_cityscapes,
    remotes=(
        Remote(
            files=("leftImg8bit/train/", "leftImg8bit/val/", "gtFine/train/", "gtFine/val/"),
            license="non-commercial research, see https://www.cityscapes-dataset.com/license",
            inside=("cityscapes",),
        ),
    ),
    how_to_get=CITYSCAPES_HOW,
)


# --- voc ------------------------------------------------------------------------------------------

VOC_LABELS = (
    *("background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat"),
    *("chair", "cow", "dining table", "dog", "horse", "motorbike", "person", "potted plant"),
    *("sheep", "sofa", "train", "tv monitor"),
)
VOC_NUMBERS = np.array([*range(len(VOC_LABELS)), *[-1] * (VOID - len(VOC_LABELS)), VOID], np.int16)

VOC_ARCHIVE = "VOCtrainval_11-May-2012.tar"
VOC_FOLDER = "VOCdevkit/VOC2012"
VOC_LARGEST = 4 << 30
_NEEDED = ("ImageSets/Segmentation/", "JPEGImages/", "SegmentationClass/")


def read_voc(
    files: Files, *, size: Size | None = None, channels: int | None = None
) -> SegmentationSet:
    """The 1,464 training and 1,449 validation images of the segmentation task, of several sizes.

    The validation images are the test images: the masks of the test images are not published. The
    archive is unpacked next to itself once.

    Raises:
        DataError: If a file is missing or damaged.
        ValueError: If `channels` is 1.
    """
    check_rgb(channels, files.entry.title)
    place = files.paths[0]
    root = _unpack(place) if place.name == VOC_ARCHIVE else place.parent.parent
    splits = {split: _pairs(root, split) for split in ("train", "val")}
    colors = palette(len(VOC_LABELS))
    return read_listed(
        files.title, root, splits, size=size, numbers=VOC_NUMBERS, labels=VOC_LABELS, colors=colors
    )


def _pairs(root: Path, split: str) -> list[tuple[str, str]]:
    listed = root / "ImageSets" / "Segmentation" / f"{split}.txt"
    with read_errors(listed):
        names = listed.read_text("utf-8").split()
    if not names:
        raise DataError(f"{listed} lists no images: unpack the data set again")
    return [(f"JPEGImages/{name}.jpg", f"SegmentationClass/{name}.png") for name in names]


def _unpack(path: Path) -> Path:
    """The folder of an archive, unpacked next to it: whole or not at all."""
    root = path.parent / VOC_FOLDER
    if root.is_dir():
        return root
    with write_errors(root, "--data-dir or EQUILIBRIA_DATA"):
        root.parent.mkdir(parents=True, exist_ok=True)
        with whole_folder(root) as part:
            wanted = tuple(f"{VOC_FOLDER}/{name}" for name in _NEEDED)
            for name, content in archive.read_tar(
                path, lambda n: n.startswith(wanted), VOC_LARGEST
            ):
                target = (part / Path(name).relative_to(VOC_FOLDER)).resolve()
                if not target.is_relative_to(part.resolve()):
                    raise DataError(f"{path} has a file {name} that leads out of its folder")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
    return root


_PACKED = Remote(
    files=(VOC_ARCHIVE,),
    addresses=("http://host.robots.ox.ac.uk/pascal/VOC/voc2012/",),
    # From torchvision, datasets/voc.py.
    checksums={VOC_ARCHIVE: "md5:6cd6e144f989b92b3379bac3b3de84fd"},
    license="Flickr's terms of use; cite Everingham et al. 2012",
    size="2.0 GB",
    inside=("voc",),
    largest=VOC_LARGEST,
)

VOC = Entry(
    name="voc",
    title="Pascal VOC 2012",
    read=read_voc,
    remotes=(
        _PACKED,
        _PACKED.as_folder(_NEEDED, VOC_FOLDER, f"voc/{VOC_FOLDER}", "VOC2012", checksums={}),
    ),
)


# --- shapes ---------------------------------------------------------------------------------------

SHAPES_SIZE = (48, 64)
SHAPES_LABELS = ("ground", "disc", "square", "triangle")
SHAPES_COLORS = ((40, 40, 60), (255, 60, 60), (60, 200, 255), (255, 220, 0))
SHAPES_COUNTS = {"train": 600, "valid": 100, "test": 100}
SHAPES_NUMBER = (1, 3)
"""Fewest and most shapes of an image; later ones hide earlier ones."""


def read_shapes(
    files: Files, *, size: Size | None = None, channels: int | None = None
) -> SegmentationSet:
    """600 training, 100 validation and 100 test images with masks, drawn with fixed seeds.

    On a ground whose colour runs from one corner to another, with noise, lie one to three shapes of
    random colour, size, place and rotation: neither colour nor place tells the class of a pixel.

    Args:
        files: None are needed.
        size: Height and width that images and masks are brought to; None for 48 x 64.
        channels: 3 or None: images are RGB.

    Raises:
        ValueError: If `channels` is 1.
    """
    check_rgb(channels, files.entry.title)
    splits, total = {}, hashlib.sha256()
    for seed, (split, count) in enumerate(SHAPES_COUNTS.items()):
        generator = np.random.default_rng([17, seed])
        pairs = [_draw(generator) for _ in range(count)]
        for image, mask in pairs:
            total.update(image.tobytes() + mask.tobytes())
        splits[split] = _images(split, pairs, size)
    return SegmentationSet(
        title="shapes (drawn)",
        train=splits["train"],
        test=splits["test"],
        valid=splits["valid"],
        labels=SHAPES_LABELS,
        colors=SHAPES_COLORS,
        checksum=f"sha256:{total.hexdigest()}",
    )


def _draw(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """An image, uint8 (height, width, 3), and its mask."""
    height, width = SHAPES_SIZE
    down, across = np.mgrid[:height, :width].astype(np.float64)
    ends = generator.uniform(40, 215, (2, 3))
    share = (down / height + across / width)[..., None] / 2
    image = ends[0] * (1 - share) + ends[1] * share
    mask = np.zeros(SHAPES_SIZE, np.uint8)
    for _ in range(generator.integers(SHAPES_NUMBER[0], SHAPES_NUMBER[1] + 1)):
        kind = int(generator.integers(1, len(SHAPES_LABELS)))
        radius = generator.uniform(9, 15)
        middle = generator.uniform((6, 6), (height - 6, width - 6))
        angle = generator.uniform(0, 2 * np.pi)
        y, x = down - middle[0], across - middle[1]
        u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
        inside = {
            1: u**2 + v**2 < radius**2,
            2: np.maximum(abs(u), abs(v)) < 0.85 * radius,
            3: (v > -0.6 * radius) & (abs(u) * np.sqrt(3) + v < 1.1 * radius),
        }[kind]
        image[inside] = generator.uniform(0, 255, 3)
        mask[inside] = kind
    image += generator.normal(0, 8, image.shape)
    return image.round().clip(0, 255).astype(np.uint8), mask


def _images(
    split: str, pairs: list[tuple[np.ndarray, np.ndarray]], size: Size | None
) -> MaskedImages:
    high, wide = size or SHAPES_SIZE
    images = torch.from_numpy(np.stack([image for image, _ in pairs])).permute(0, 3, 1, 2)
    masks = torch.from_numpy(np.stack([mask for _, mask in pairs]))
    if size is not None and size != SHAPES_SIZE:
        images = torch.nn.functional.interpolate(
            images.float(), size=(high, wide), mode="bilinear", antialias=True
        )
        images = images.round().clamp(0, 255).to(torch.uint8)
        rows, columns = (torch.from_numpy(lines) for lines in map(nearest, SHAPES_SIZE, size))
        masks = masks[:, rows[:, None], columns]
    return MaskedImages(
        names=[f"{split}-{number:03}" for number in range(len(pairs))],
        sizes=[(high, wide)] * len(pairs),
        channels=3,
        source=Kept(images.contiguous(), masks.contiguous()),
        places=range(len(pairs)),
    )


SHAPES_SET = Entry(name="shapes", title="shapes (drawn)", read=read_shapes)
