"""CIFAR-10 and CIFAR-100: 60,000 photographs of 32 x 32 pixels (Krizhevsky 2009)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from equilibria.data import checksums, locate
from equilibria.data.dataset import Dataset, Split, digest
from equilibria.data.errors import DataError
from equilibria.data.fetch import fetch
from equilibria.data.images import archive, jpeg_copy
from equilibria.data.images.batches import pickled, records

ADDRESS = "https://www.cs.toronto.edu/~kriz/"

Reader = Callable[[bytes, str], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class Version:
    """One of the forms in which the images are published.

    Attributes:
        archive: Name of the archive.
        md5: md5 of the archive, from the page https://www.cs.toronto.edu/~kriz/cifar.html.
        folder: Name of the folder that is in it.
        files: For each split its files in order, each with its md5 (torchvision,
            ``datasets/cifar.py``) or None where nobody published one.
        read: Decodes the content of a file.
        counts: Images of each split, as many in each of its files.
    """

    archive: str
    md5: str
    folder: str
    files: Mapping[str, Mapping[str, str | None]]
    read: Reader
    counts: Mapping[str, int] = field(default_factory=lambda: {"train": 50_000, "test": 10_000})

    @property
    def names(self) -> list[str]:
        """All files that are read."""
        return [name for files in self.files.values() for name in files]

    def find(self, places: list[Path]) -> dict[str, bytes] | None:
        """The content of all files, from the archive or unpacked; None where they are not."""
        path = locate.find((self.archive,), places)
        if path is not None:
            checksums.check(path, f"md5:{self.md5}")
            return self.unpack(path)
        for place in places:
            for folder in (place, place / self.folder):
                # Another data set has files of these names: they count in this folder alone.
                if folder.name == self.folder and all((folder / n).is_file() for n in self.names):
                    return self._unpacked(folder)
        return None

    def unpack(self, path: Path) -> dict[str, bytes]:
        """The content of all files, from the archive."""
        wanted = {f"{self.folder}/{name}": name for name in self.names}
        found = {wanted[n]: content for n, content in archive.members(path, wanted.__contains__)}
        if missing := [name for name in self.names if name not in found]:
            raise DataError(f"{path} has no {self.folder}/{missing[0]}: it is another file")
        return found

    def splits(self, contents: dict[str, bytes], classes: int) -> dict[str, Split]:
        """The images of each split in their original order.

        Raises:
            DataError: If a file is damaged, has another number of images, or an unknown label.
        """
        splits: dict[str, Split] = {}
        for split, files in self.files.items():
            parts = [self.read(contents[name], f"{self.folder}/{name}") for name in files]
            expected = self.counts[split] // len(files)
            for name, (found, _) in zip(files, parts, strict=True):
                if len(found) != expected:
                    raise DataError(
                        f"{self.folder}/{name} has {len(found):,} images, expected {expected:,}: "
                        "it is truncated or another file"
                    )
            images = np.concatenate([part[0] for part in parts])
            targets = np.concatenate([part[1] for part in parts]).astype(np.int64)
            unknown = targets[(targets < 0) | (targets >= classes)]
            if len(unknown):
                raise DataError(
                    f"{', '.join(files)} of {self.folder}: a label is {unknown[0]}, expected "
                    f"0 to {classes - 1}"
                )
            splits[split] = Split(torch.from_numpy(images), torch.from_numpy(targets))
        return splits

    def _unpacked(self, folder: Path) -> dict[str, bytes]:
        for files in self.files.values():
            for name, md5 in files.items():
                if md5 is not None:
                    checksums.check(folder / name, f"md5:{md5}")
        try:
            return {name: (folder / name).read_bytes() for name in self.names}
        except OSError as error:
            raise DataError(f"{folder} cannot be read: {error.strerror or error}") from error


@dataclass(frozen=True, kw_only=True)
class Release:
    """One of the two data sets.

    Attributes:
        name: What `load` knows it by.
        title: What it is called.
        labels: Names of the classes.
        versions: Forms in which it is published; the first is the one that is downloaded.
        copied: Whether there is a copy of it as JPEG files.
    """

    name: str
    title: str
    labels: tuple[str, ...]
    versions: tuple[Version, ...]
    copied: bool = False

    def load(
        self, data_dir: str | os.PathLike[str] | None = None, download: bool = True
    ) -> Dataset:
        """All 50,000 training and 10,000 test images.

        The binary version and the Python version, as archives or unpacked, are looked for in
        `data_dir`, then ``$EQUILIBRIA_DATA``, then the user's cache; then a copy of CIFAR-10 as
        JPEG files (``cifar10_jpg.tar.xz``), whose title says what it is. What is nowhere is
        downloaded (the binary version, 160 MB) into the first of these places.

        Args:
            data_dir: Folder that holds the files, or a folder of the data set's name that does.
            download: Whether what is missing may be downloaded.

        Returns:
            Images as uint8, ``(count, 3, 32, 32)``, which batches have as float32 in [0, 1], and
            targets as int64, ``(count,)``.

        Raises:
            DataError: If the images are missing and cannot be downloaded, or a file is damaged.
        """
        places = locate.folders(self.name, data_dir)
        for version in self.versions:
            contents = version.find(places)
            if contents is not None:
                return self._dataset(version, contents)
        copy = jpeg_copy.find(data_dir) if self.copied else None
        if copy is not None:
            title = f"{self.title} (JPEG copy)"
            return self._made(jpeg_copy.read(copy, self.labels), title, str(copy))
        version = self.versions[0]
        if not download:
            raise DataError(
                f"{self.name}: {' and '.join(v.archive for v in self.versions)} are in none of "
                f"{', '.join(map(str, places))}. Allow the download (160 MB), or fetch "
                f"{ADDRESS}{version.archive} and name its folder with --data-dir or "
                "EQUILIBRIA_DATA"
            )
        path = fetch(
            f"{ADDRESS}{version.archive}",
            places[0] / version.archive,
            checksum=f"md5:{version.md5}",
        )
        return self._dataset(version, version.unpack(path))

    def _dataset(self, version: Version, contents: dict[str, bytes]) -> Dataset:
        splits = version.splits(contents, len(self.labels))
        return self._made(splits, self.title, f"{ADDRESS}{version.archive}")

    def _made(self, splits: dict[str, Split], title: str, source: str) -> Dataset:
        return Dataset(
            name=self.name,
            title=title,
            train=splits["train"],
            test=splits["test"],
            classes=len(self.labels),
            labels=self.labels,
            shape=tuple(splits["train"].inputs.shape[1:]),
            source=source,
            checksum=digest(*splits.values()),
        )


_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree
orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum
rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train
trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

CIFAR10 = Release(
    name="cifar10",
    title="CIFAR-10",
    labels=(
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
    versions=(
        Version(
            archive="cifar-10-binary.tar.gz",
            md5="c32a1d4ab5d03f1284b67883e8d87530",
            folder="cifar-10-batches-bin",
            files={
                "train": {f"data_batch_{number}.bin": None for number in range(1, 6)},
                "test": {"test_batch.bin": None},
            },
            read=partial(records, labels=1),
        ),
        Version(
            archive="cifar-10-python.tar.gz",
            md5="c58f30108f718f92721af3b95e74349a",
            folder="cifar-10-batches-py",
            files={
                "train": {
                    "data_batch_1": "c99cafc152244af753f735de768cd75f",
                    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                    "data_batch_4": "634d18415352ddfa80567beed471001a",
                    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                },
                "test": {"test_batch": "40351d587109b95175f43aff81a1287e"},
            },
            read=partial(pickled, key="labels"),
        ),
    ),
    copied=True,
)

CIFAR100 = Release(
    name="cifar100",
    title="CIFAR-100",
    labels=tuple(_CIFAR100.split()),
    versions=(
        Version(
            archive="cifar-100-binary.tar.gz",
            md5="03b5dce01913d631647c71ecec9e9cb8",
            folder="cifar-100-binary",
            files={"train": {"train.bin": None}, "test": {"test.bin": None}},
            read=partial(records, labels=2),
        ),
        Version(
            archive="cifar-100-python.tar.gz",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
            folder="cifar-100-python",
            files={
                "train": {"train": "16019d7e3df5f24257cddd939b257f8d"},
                "test": {"test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
            },
            read=partial(pickled, key="fine_labels"),
        ),
    ),
)
