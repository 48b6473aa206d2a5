"""The two formats in which the CIFAR images are published: records of bytes, and pickles."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.dataset import Dataset, Split
from equilibria.run.data.storage import DataError, track
from equilibria.zoo.io import archive, decode, download
from equilibria.zoo.io.remote import Entry, Files, Remote, cache_tensors

PIXELS = 3 * 32 * 32


def records(content: bytes, name: str, labels: int) -> tuple[np.ndarray, np.ndarray]:
    """Read the binary version: for each image its labels, a byte each, and its pixels.

    Args:
        content: Of the file.
        name: Of the file, for messages.
        labels: Bytes before the pixels, the last of which is the label that counts: 1 in
            CIFAR-10, 2 in CIFAR-100, whose first is the superclass.

    Returns:
        Pixels as uint8, ``(count, 3, 32, 32)``, and labels as uint8, ``(count,)``.

    Raises:
        DataError: If the file does not consist of whole records.
    """
    if not content or len(content) % (labels + PIXELS):
        raise DataError(
            f"{name} has {len(content)} bytes, not a multiple of the {labels + PIXELS} of one "
            "image: it is truncated or the wrong file"
        )
    rows = np.frombuffer(content, np.uint8).reshape(-1, labels + PIXELS)
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1]


def read_pickle(content: bytes, name: str, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Read the Python version: a pickled dictionary of arrays and lists.

    Only numpy arrays and pickle's built-in types are created, and no other function is called,
    whatever the file asks for.

    The labels are under `key`; everything else is as for `records`.

    Raises:
        DataError: If the file is something else.
    """
    try:
        batch = _Arrays(io.BytesIO(content), encoding="latin1").load()
        images, labels = np.asarray(batch["data"]), np.asarray(batch[key])
        return images.astype(np.uint8, casting="safe").reshape(-1, 3, 32, 32), labels
    except Exception as error:  # a damaged pickle can raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{name} is damaged or not a batch of CIFAR images ({reason})") from error


class _Arrays(pickle.Unpickler):
    """Makes arrays of numpy and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed")
        return _ALLOWED[module, name]


def _reconstruct(cls: type, shape: tuple[int, ...], code: bytes | str) -> np.ndarray:
    """Make the empty array that a pickle fills; what numpy's own function does."""
    if cls is not np.ndarray:
        raise pickle.UnpicklingError(f"an array of type {cls!r}")
    return np.ndarray.__new__(np.ndarray, shape, code if isinstance(code, str) else code.decode())


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("_codecs", "encode"): lambda text, encoding: text.encode(encoding),
}


# --- jpeg copy ------------------------------------------------------------------------------------

# CIFAR-10 as JPEG files in a tar archive: a lossy copy, decoded once.


JPEG_COUNTS = {"train": 5_000, "test": 1_000}
SIZE = (32, 32)

# A part of the name of every file in the cache: another layout must not meet this one.
_FORMAT = 2

REMOTE = Remote(
    files=("cifar10_jpg.tar.xz",),
    license="none stated; cite Krizhevsky 2009",
    inside=("cifar10_jpeg", "."),
    copy="JPEG copy",
)


def read_jpegs(path: Path, labels: tuple[str, ...]) -> dict[str, Split]:
    """The images of the archive, ``SPLIT/CLASS/NAME.jpg``, decoded by Pillow.

    In the archive the classes follow each other; here the first image of each class comes first,
    then the second of each, so that every part of a split has all classes. The pixels are kept in
    the user's cache, under the checksum of the archive.

    Args:
        path: The archive.
        labels: Names of the classes.

    Returns:
        "train" and "test", images as uint8, ``(count, 3, 32, 32)``.

    Raises:
        DataError: If the archive is damaged or holds other images.
    """
    key = download.digest(path).partition(":")[2][:24]

    def make() -> dict[str, Tensor]:
        return {
            f"{split}.{part}": tensor
            for split, found in _decode_archive(path, labels).items()
            for part, tensor in (("inputs", found.inputs), ("targets", found.targets))
        }

    found = cache_tensors(f"images/cifar10-jpeg-{_FORMAT}-{key}", make)
    return {
        split: Split(found[f"{split}.inputs"], found[f"{split}.targets"]) for split in JPEG_COUNTS
    }


def _decode_archive(path: Path, labels: tuple[str, ...]) -> dict[str, Split]:
    files: dict[tuple[str, str], list[tuple[str, bytes]]] = {
        (split, label): [] for split in JPEG_COUNTS for label in labels
    }
    for name, content in archive.read_tar(path, lambda name: name.endswith(".jpg")):
        split, _, rest = name.partition("/")
        place = (split, rest.partition("/")[0])
        if place not in files:
            raise DataError(
                f"{name} in {path} belongs to no known class: expected train/CLASS/NAME.jpg and "
                f"test/CLASS/NAME.jpg, CLASS one of {', '.join(labels)}"
            )
        files[place].append((name, content))
    for (split, label), found in files.items():
        if len(found) != JPEG_COUNTS[split]:
            raise DataError(
                f"{path} has {len(found)} images in {split}/{label}: expected {JPEG_COUNTS[split]}"
            )
        found.sort()
    return {
        split: _interleave([files[split, label] for label in labels], path) for split in JPEG_COUNTS
    }


def _interleave(classes: list[list[tuple[str, bytes]]], path: Path) -> Split:
    """Images of all classes, interleaved: the first of each, the second of each, ..."""
    interleaved = [file for row in zip(*classes, strict=True) for file in row]
    images = np.empty((len(interleaved), 3, *SIZE), np.uint8)
    decoded = decode.in_threads(
        lambda file: decode.pixels(file[1], f"{file[0]} in {path}", "RGB", SIZE), interleaved
    )
    for place, image in enumerate(track(decoded, len(interleaved), "Decoding CIFAR-10 once")):
        images[place] = image
    targets = torch.arange(len(classes)).repeat(len(interleaved) // len(classes))
    return Split(torch.from_numpy(images), targets)


# --- cifar ----------------------------------------------------------------------------------------

# CIFAR-10 and CIFAR-100: 60,000 photographs of 32 x 32 pixels (Krizhevsky 2009).


ADDRESS = "https://www.cs.toronto.edu/~kriz/"

COUNTS = {"train": 50_000, "test": 10_000}
"""Images of each split, as many in each of its files."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """One of the forms in which the images are published.

    Attributes:
        archive: Name of the archive.
        md5: md5 of the archive, from the page https://www.cs.toronto.edu/~kriz/cifar.html.
        folder: Name of the folder that is in it.
        files: For each split its files in order.
        read: Decodes the content of a file, given its name for messages.
        checksums: Of the files, where somebody published them (torchvision, `datasets/cifar.py`).
    """

    archive: str
    md5: str
    folder: str
    files: Mapping[str, tuple[str, ...]]
    read: Callable[[bytes, str], tuple[np.ndarray, np.ndarray]]
    checksums: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All files that are read."""
        return tuple(name for files in self.files.values() for name in files)

    @property
    def remotes(self) -> tuple[Remote, Remote]:
        """The archive, and the folder that was unpacked from it."""
        packed = Remote(
            files=(self.archive,),
            addresses=(ADDRESS,),
            checksums={self.archive: f"md5:{self.md5}"},
            license="none stated; cite Krizhevsky 2009",
            size="160 MB",
        )
        return packed, packed.as_folder(self.names, self.folder, checksums=self.checksums)

    def read_split(self, split: str, contents: Mapping[str, bytes], classes: int) -> Split:
        """The images of a split in their original order.

        Raises:
            DataError: If a file is damaged, has another number of images, or an unknown label.
        """
        names = self.files[split]
        parts = [self.read(contents[name], f"{self.folder}/{name}") for name in names]
        expected = COUNTS[split] // len(names)
        for name, (found, _) in zip(names, parts, strict=True):
            if len(found) != expected:
                raise DataError(
                    f"{self.folder}/{name} has {len(found):,} images, expected {expected:,}: it is "
                    "truncated or the wrong file"
                )
        images, targets = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        targets = targets.astype(np.int64)
        if len(unknown := targets[(targets < 0) | (targets >= classes)]):
            raise DataError(
                f"{', '.join(names)} of {self.folder}: a label is {unknown[0]}, expected 0 to "
                f"{classes - 1}"
            )
        return Split(torch.from_numpy(images), torch.from_numpy(targets))


def entry(
    name: str, title: str, labels: tuple[str, ...], versions: tuple[Version, ...], *copies: Remote
) -> Entry:
    """The line of the registry for one of the two; the first version is the one downloaded."""
    remotes = (*(remote for version in versions for remote in version.remotes), *copies)
    read = partial(_read, labels=labels, versions=versions)
    return Entry(name=name, title=title, read=read, remotes=remotes)


def _read(files: Files, labels: tuple[str, ...], versions: tuple[Version, ...]) -> Dataset:
    """All 50,000 training and 10,000 test images.

    Images are uint8, ``(count, 3, 32, 32)``, which batches have as float32 in [0, 1], and targets
    int64, ``(count,)``.
    """
    if files.remote.copy is not None:
        splits = read_jpegs(files.paths[0], labels)
    else:
        version = next(each for each in versions if files.remote in each.remotes)
        contents = archive.read_contents(files.paths, version.folder, version.names)
        splits = {split: version.read_split(split, contents, len(labels)) for split in COUNTS}
    return Dataset.of(files, splits, labels)


LABELS10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_LABELS100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile
cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp
lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain mouse mushroom oak_tree
orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine possum
rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train
trout tulip turtle wardrobe whale willow_tree wolf woman worm
"""

BINARY10 = Version(
    archive="cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
    folder="cifar-10-batches-bin",
    files={
        "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        "test": ("test_batch.bin",),
    },
    read=partial(records, labels=1),
)
PYTHON10 = Version(
    archive="cifar-10-python.tar.gz",
    md5="c58f30108f718f92721af3b95e74349a",
    folder="cifar-10-batches-py",
    files={
        "train": tuple(f"data_batch_{number}" for number in range(1, 6)),
        "test": ("test_batch",),
    },
    read=partial(read_pickle, key="labels"),
    checksums={
        "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "md5:40351d587109b95175f43aff81a1287e",
    },
)
BINARY100 = Version(
    archive="cifar-100-binary.tar.gz",
    md5="03b5dce01913d631647c71ecec9e9cb8",
    folder="cifar-100-binary",
    files={"train": ("train.bin",), "test": ("test.bin",)},
    read=partial(records, labels=2),
)
PYTHON100 = Version(
    archive="cifar-100-python.tar.gz",
    md5="eb9058c3a382ffc7106e4002c42a8d85",
    folder="cifar-100-python",
    files={"train": ("train",), "test": ("test",)},
    read=partial(read_pickle, key="fine_labels"),
    checksums={
        "train": "md5:16019d7e3df5f24257cddd939b257f8d",
        "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
)

CIFAR10 = entry("cifar10", "CIFAR-10", LABELS10, (BINARY10, PYTHON10), REMOTE)
CIFAR100 = entry("cifar100", "CIFAR-100", tuple(_LABELS100.split()), (BINARY100, PYTHON100))
