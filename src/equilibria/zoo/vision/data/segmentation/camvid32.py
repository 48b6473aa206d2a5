"""CamVid as it was published: 701 frames with 31 classes and void (Brostow et al. 2009)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from equilibria.run.data.errors import DataError, reading
from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.vision.data.segmentation.listed import images_of
from equilibria.zoo.vision.data.segmentation.sets import VOID, SegmentationSet, Size

IMAGES, MASKS, COLOURS = "701_StillsRaw_full", "LabeledApproved_full", "label_colors.txt"


def read(files: Files, *, size: Size | None = None, channels: int | None = None) -> SegmentationSet:
    """The frames of 720 x 960 pixels, in the order of the video, with the colours' classes.

    The masks are RGB images, and ``label_colors.txt`` has a colour and a name on each line. Where
    there are lists ``train.txt``, ``val.txt`` and ``test.txt`` of names, they are the split;
    otherwise it is the published one: of the sequences 0001TP, 0006R0, 0016E5 and Seq05VD, the
    latter and the second half of 0001TP are the test frames (Brostow et al. 2009, sec. 5), and none
    are to validate on.

    Raises:
        DataError: If a file is missing or damaged, or a mask has a colour that is not listed.
        ValueError: If `channels` is 1.
    """
    if channels not in (None, 3):
        raise ValueError(f"channels is {channels}, and the frames of CamVid are RGB: 3, or null")
    root = files.paths[0].parent
    labels, colours, table = _classes(root / COLOURS)
    names = sorted(path.stem for path in (root / IMAGES).glob("*.png"))
    if not names:
        raise DataError(f"{root / IMAGES} has no PNG files: unpack the data set again")
    splits = {
        split: [(f"{IMAGES}/{name}.png", f"{MASKS}/{name}_L.png") for name in chosen]
        for split, chosen in _splits(root, names).items()
    }

    def numbers(pixels: np.ndarray, name: str) -> np.ndarray:
        if pixels.ndim != 3:
            raise DataError(f"{name} is no RGB image: masks have the colours of {COLOURS}")
        codes = pixels.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)
        found = table[codes]
        if (unknown := found == _UNLISTED).any():
            down, across = (int(each[0]) for each in unknown.nonzero())
            raise DataError(
                f"{name} has the colour {tuple(pixels[down, across].tolist())}, which "
                f"{COLOURS} does not list"
            )
        return found

    with reading(root / COLOURS):
        meaning = (root / COLOURS).read_bytes()
    found, checksum = images_of(root, splits, size=size, numbers=numbers, meaning=meaning)
    return SegmentationSet(
        title=files.title,
        train=found["train"],
        test=found["test"],
        valid=found.get("val"),
        labels=labels,
        colours=colours,
        checksum=checksum,
    )


_UNLISTED = 254


def _classes(
    path: Path,
) -> tuple[tuple[str, ...], tuple[tuple[int, int, int], ...], np.ndarray]:
    """Names and colours of the classes, and the class of each colour; void is none."""
    with reading(path):
        lines = [line.split() for line in path.read_text("utf-8").splitlines() if line.strip()]
    rows: list[tuple[str, tuple[int, int, int]]] = []
    for words in lines:
        if len(words) != 4 or not all(word.isdigit() and int(word) < 256 for word in words[:3]):
            raise DataError(f"{path}: '{' '.join(words)}' is no colour and name: R G B NAME")
        rows.append((words[3], (int(words[0]), int(words[1]), int(words[2]))))
    known = [row for row in rows if row[0].lower() != "void"]
    if len({name for name, _ in rows}) < len(rows) or len({c for _, c in rows}) < len(rows):
        raise DataError(f"{path} lists a class or a colour twice: unpack the data set again")
    table = np.full(1 << 24, _UNLISTED, np.uint8)
    for name, (red, green, blue) in rows:
        code = red << 16 | green << 8 | blue
        table[code] = VOID if name.lower() == "void" else [n for n, _ in known].index(name)
    return tuple(name for name, _ in known), tuple(colour for _, colour in known), table


def _splits(root: Path, names: list[str]) -> dict[str, list[str]]:
    lists = {split: root / f"{split}.txt" for split in ("train", "val", "test")}
    if not all(path.is_file() for path in lists.values()):
        late = [name for name in names if name.startswith("0001TP")]
        test = {*late[len(late) // 2 :], *(n for n in names if n.startswith("Seq05VD"))}
        return {
            "train": [name for name in names if name not in test],
            "test": [name for name in names if name in test],
        }
    found: dict[str, list[str]] = {}
    for split, path in lists.items():
        with reading(path):
            lines = path.read_text("utf-8").splitlines()
        found[split] = [Path(line.split()[0]).stem for line in lines if line.strip()]
    return found


CAMVID32 = Entry(
    name="camvid32",
    title="CamVid, 32 classes",
    read=read,
    remotes=(
        Remote(
            files=(f"{IMAGES}/", f"{MASKS}/", COLOURS),
            licence="research; cite Brostow et al. 2009",
            inside=("camvid32", "camvid", "CamVid"),
        ),
    ),
    how_to_get=(
        "Get the frames, 701_StillsRaw_full.zip, the masks, LabeledApproved_full.zip, and "
        "label_colors.txt from http://mi.eng.cam.ac.uk/research/projects/VideoRec/CamVid/, unpack "
        "them to camvid32/701_StillsRaw_full and camvid32/LabeledApproved_full, and name the "
        "folder that contains camvid32 with --data-dir or EQUILIBRIA_DATA"
    ),
)
