"""All named data sets: a new one is a file with its reader and a line here, or is registered."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import UnionType
from typing import Any

from equilibria.data import images
from equilibria.data.dataset import Dataset, Split
from equilibria.data.errors import DataError
from equilibria.data.flow import FlowSet
from equilibria.data.flow import folder as own_pairs
from equilibria.data.graphs import GraphSet, NodeSet
from equilibria.data.graphs import user as own_graphs
from equilibria.data.images import ImageFolder, layout
from equilibria.data.remote import Entry, Files
from equilibria.data.segmentation import SegmentationSet, folder
from equilibria.data.sequences import SequenceSet, user
from equilibria.data.signals.sets import SignalSet
from equilibria.data.text.corpus import Corpus
from equilibria.words import nearest

DATA_SETS: dict[str, tuple[type, str | Entry]] = {
    "bach": (SignalSet, "equilibria.data.signals.recording:BACH"),
    "camvid": (SegmentationSet, "equilibria.data.segmentation.camvid:CAMVID"),
    "camvid32": (SegmentationSet, "equilibria.data.segmentation.camvid32:CAMVID32"),
    "chairs": (FlowSet, "equilibria.data.flow.chairs:CHAIRS"),
    "cifar10": (Dataset, "equilibria.data.images.cifar:CIFAR10"),
    "cifar100": (Dataset, "equilibria.data.images.cifar:CIFAR100"),
    "chains": (NodeSet, "equilibria.data.graphs.synthetic:CHAINS"),
    "citeseer": (NodeSet, "equilibria.data.graphs.planetoid:CITESEER"),
    "cityscapes": (SegmentationSet, "equilibria.data.segmentation.cityscapes:CITYSCAPES"),
    "copy-memory": (Split, "equilibria.data.copy_memory:COPY_MEMORY"),
    "cora": (NodeSet, "equilibria.data.graphs.planetoid:CORA"),
    "cox2": (GraphSet, "equilibria.data.graphs.tu:COX2"),
    "digits": (Dataset, "equilibria.data.digits:DIGITS"),
    "dsa19": (SequenceSet, "equilibria.data.sequences.dsa:DSA19"),
    "google12": (SequenceSet, "equilibria.data.sequences.speech:GOOGLE12"),
    "google30": (SequenceSet, "equilibria.data.sequences.speech:GOOGLE30"),
    "har2": (SequenceSet, "equilibria.data.sequences.har:HAR2"),
    "har6": (SequenceSet, "equilibria.data.sequences.har:HAR6"),
    "hd1k": (FlowSet, "equilibria.data.flow.hd1k:HD1K"),
    "imagenet": (ImageFolder, "equilibria.data.images.imagenet:IMAGENET"),
    "kitti": (FlowSet, "equilibria.data.flow.kitti:KITTI"),
    "layers": (FlowSet, "equilibria.data.flow.layers:LAYERS"),
    "mnist": (Dataset, "equilibria.data.mnist:MNIST"),
    "mutag": (GraphSet, "equilibria.data.graphs.tu:MUTAG"),
    "noisy-cifar10": (SequenceSet, "equilibria.data.sequences.pixels:NOISY_CIFAR10"),
    "noisy-mnist": (SequenceSet, "equilibria.data.sequences.pixels:NOISY_MNIST"),
    "permuted-mnist": (SequenceSet, "equilibria.data.sequences.pixels:PERMUTED_MNIST"),
    "photographs": (SignalSet, "equilibria.data.signals.photographs:PHOTOGRAPHS"),
    "pixel-mnist": (SequenceSet, "equilibria.data.sequences.pixels:PIXEL_MNIST"),
    "ppi": (NodeSet, "equilibria.data.graphs.ppi:PPI"),
    "proteins": (GraphSet, "equilibria.data.graphs.tu:PROTEINS"),
    "ptb": (Corpus, "equilibria.data.text.named:PTB"),
    "pubmed": (NodeSet, "equilibria.data.graphs.planetoid:PUBMED"),
    "shapes": (SegmentationSet, "equilibria.data.segmentation.shapes:SHAPES_SET"),
    "sintel": (FlowSet, "equilibria.data.flow.sintel:SINTEL"),
    "street": (SignalSet, "equilibria.data.signals.street:STREET"),
    "text-images": (SignalSet, "equilibria.data.signals.lettering:TEXT_IMAGES"),
    "things": (FlowSet, "equilibria.data.flow.things:THINGS"),
    "voc": (SegmentationSet, "equilibria.data.segmentation.voc:VOC"),
    "wikitext2": (Corpus, "equilibria.data.text.named:WIKITEXT2"),
    "wikitext103": (Corpus, "equilibria.data.text.named:WIKITEXT103"),
    "yelp5": (SequenceSet, "equilibria.data.sequences.yelp:YELP5"),
}
"""The type of each data set, by name, and its `Entry`, or where that is, imported on demand."""

FOLDERS: dict[type, tuple[Callable[..., Any], str]] = {
    ImageFolder: (images.load, layout.EXPECTED),
    SequenceSet: (user.load, user.EXPECTED),
    SegmentationSet: (folder.load, folder.EXPECTED),
    FlowSet: (own_pairs.load, own_pairs.EXPECTED),
    GraphSet: (own_graphs.load_graphs, own_graphs.GRAPHS),
    NodeSet: (own_graphs.load_nodes, own_graphs.NODES),
}
"""What reads a user's folder, and what it expects there; where `kind` allows both, the first."""

FILES = (GraphSet, NodeSet)
"""What a user's own .npz file may hold in place of a folder."""

PACKAGES = {
    "PIL": "Pillow",
    "matplotlib": "matplotlib",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
}
"""Packages of the extra `cli` that readers import, by the name of the module."""


def available(kind: type | UnionType = object) -> list[str]:
    """The names that `load` knows, sorted.

    Args:
        kind: Types of data sets to list, such as ``data.text.Corpus``; all by default.
    """
    return sorted(name for name, (gives, _) in DATA_SETS.items() if issubclass(gives, kind))


def register(name: str, kind: type, entry: Entry | str) -> None:
    """Let `load` and recipes name a data set.

    Args:
        name: For `load`; the entry has the same.
        kind: Type that its reader returns, such as `Dataset`.
        entry: Its `Entry`, or where that is: ``"module:ENTRY"``, imported on demand.

    Raises:
        ValueError: If the name is taken, or the entry has another one.
    """
    if isinstance(entry, Entry) and entry.name != name:
        raise ValueError(f"the entry of data set '{name}' is called '{entry.name}'")
    if DATA_SETS.setdefault(name, (kind, entry)) != (kind, entry):
        raise ValueError(f"there is a data set '{name}' already")


def entry(name: str) -> Entry:
    """The entry of a data set, whose reader is imported here."""
    known = DATA_SETS[name][1]
    return pkgutil.resolve_name(known) if isinstance(known, str) else known


def load(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    download: bool = True,
    *,
    kind: type | UnionType = object,
    **options: Any,
) -> Any:
    """Read a data set, and download it first if it is not on disk.

    Official data on disk come before lower-quality copies on disk, which are read with a warning
    and named in the data set's title; what is not on disk is downloaded.

    Args:
        name: One of `available()`, or a folder of images with one subfolder per class; where
            `kind` is `sequences.SequenceSet`, a folder of sequences (`sequences.load`); where it is
            `segmentation.SegmentationSet`, one of images and masks (`segmentation.load`); where it
            is `flow.FlowSet`, one of pairs of images with their flow (`flow.load`); where it is
            `graphs.NodeSet` or `graphs.GraphSet`, a file of arrays (`graphs.load_nodes`) or a
            folder of texts (`graphs.load_graphs`).
        data_dir: Folder that is searched before ``$EQUILIBRIA_DATA`` and the user's cache.
        download: Whether missing files may be downloaded.
        kind: Types that may be returned; names of data sets of other types are unknown.
        options: What the data set's reader takes, such as ``unit`` for a text.

    Returns:
        A `Dataset` for classification, a `text.Corpus`, an `images.ImageFolder`, a
        `sequences.SequenceSet`, a `segmentation.SegmentationSet`, a `flow.FlowSet`, a
        `graphs.NodeSet`, a `graphs.GraphSet`, a `signals.SignalSet`, or a `Split` of copy memory.

    Raises:
        ValueError: If no data set has that name; the message names the nearest.
        DataError: If the data are missing, damaged or out of reach, or a package of the extra
            `cli` that reads them is not installed.
    """
    if name in (names := available(kind)):
        known = entry(name)
        with _packages(known.title):
            return known.read(Files(known, data_dir, download), **options)
    own = next((k for k in FOLDERS if issubclass(k, kind)), None)
    read, expected = (None, "") if own is None else FOLDERS[own]
    path = Path(name).expanduser()
    if read and (path.is_dir() or (own in FILES and path.suffix == ".npz" and path.is_file())):
        with _packages(name):
            return read(name, **options)
    if read and (Path(name).name != name or (own in FILES and path.suffix == ".npz")):
        what = "file or folder" if own in FILES else "folder"
        raise DataError(f"there is no {what} {name}; {expected}")
    said = f"no data set is called {name!r}{', nor any folder' if read else ''}"
    if name in available():
        said = f"the data set {name!r} is of another kind"
    raise ValueError(f"{said}{nearest(name, names)}")


@contextmanager
def _packages(title: str) -> Iterator[None]:
    """Turn the failed import of one of `PACKAGES` into a DataError."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = PACKAGES.get((error.name or "").partition(".")[0])
        if package is None:
            raise
        raise DataError(
            f"{title} needs {package}, which is not installed: pip install 'equilibria[cli]', or "
            "in a clone pip install '.[cli]'"
        ) from error
