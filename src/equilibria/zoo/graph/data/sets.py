"""Data sets of graphs: with classes of nodes, or a class each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equilibria.run.data.storage import DataError, open_file, read_errors
from equilibria.zoo.graph.data.graph import SPLITS, Graph
from equilibria.zoo.io.archive import DAMAGED_ZIP, open_zip
from equilibria.zoo.io.remote import Files


@dataclass(frozen=True, kw_only=True)
class NodeSet:
    """A data set of one or more graphs whose nodes have classes, or several labels each.

    Attributes:
        name: The name by which `load` knows it; of the user's own, where it lies.
        title: What tables call it.
        train: Graphs to learn from. Where there is one graph only, it is the same in all parts,
            and its masks tell which nodes are in which part.
        valid: Graphs to validate on.
        test: Graphs to test on.
        labels: What each class is called, in the order of their numbers.
        multilabel: Whether a node can have several, or none.
        source: Where they came from.
        checksum: ``sha256:...`` over all of them, to tell two runs on the same data from two runs
            on different data.
    """

    name: str
    title: str
    train: tuple[Graph, ...]
    valid: tuple[Graph, ...]
    test: tuple[Graph, ...]
    labels: tuple[str, ...]
    multilabel: bool = False
    source: str
    checksum: str

    @classmethod
    def of(cls, files: Files, parts: Mapping[str, Sequence[Graph]], **names: Any) -> NodeSet:
        """What was read from some files.

        Args:
            files: What they were read from.
            parts: Graphs of "train", "valid" and "test".
            names: `labels` and `multilabel`.
        """
        return cls(
            **origin(files),
            checksum=digest(graph for part in SPLITS for graph in parts[part]),
            **{part: tuple(parts[part]) for part in SPLITS},
            **names,
        )

    @property
    def graph(self) -> Graph:
        """The graph, of a set that has one.

        Raises:
            ValueError: If there are several.
        """
        if not (self.train[0] is self.test[0] and len(self.train) == len(self.test) == 1):
            raise ValueError(f"{self.title} has several graphs: see train, valid and test")
        return self.train[0]

    @property
    def features(self) -> int:
        """Number of features of a node."""
        return self.train[0].x.shape[1]


@dataclass(frozen=True, kw_only=True)
class GraphSet:
    """A data set of graphs that have a class each.

    Attributes:
        name: The name by which `load` knows it; of the user's own, where it lies.
        title: What tables call it.
        graphs: All of them, in an order that never changes.
        labels: What each class is called, in the order of their numbers.
        source: Where they came from.
        checksum: ``sha256:...`` over all of them.
    """

    name: str
    title: str
    graphs: tuple[Graph, ...]
    labels: tuple[str, ...]
    source: str
    checksum: str

    @classmethod
    def of(
        cls, source: Files | Path, graphs: tuple[Graph, ...], labels: tuple[str, ...]
    ) -> GraphSet:
        """Graphs that were read from the files of a data set, or from a path of the user's."""
        return cls(**origin(source), graphs=graphs, labels=labels, checksum=digest(graphs))

    def __len__(self) -> int:
        return len(self.graphs)

    @property
    def targets(self) -> Tensor:
        """The class of each graph, ``(graphs,)``, int64."""
        return torch.stack([graph.y for graph in self.graphs if graph.y is not None])

    @property
    def features(self) -> int:
        """Number of features of a node."""
        return self.graphs[0].x.shape[1]

    def select(self, index: Tensor) -> tuple[Graph, ...]:
        """The graphs at some positions, in that order."""
        return tuple(self.graphs[place] for place in index.tolist())


def origin(source: Files | Path) -> dict[str, str]:
    """Name, title and source of what was read from the files of a data set, or from a path."""
    if isinstance(source, Files):
        return {"name": source.entry.name, "title": source.title, "source": source.source}
    place = source.resolve()
    title = place.name if place.is_dir() else source.stem
    return {"name": str(place), "title": title, "source": str(place)}


def read_content(
    place: Path, name: str, largest: int, *, folder: str | None = None
) -> bytes | None:
    """The bytes of a file in a folder or a zip archive; None if there is no such file.

    Args:
        place: The folder, or the archive.
        name: Of the file.
        largest: Bytes that it may have.
        folder: That of the archive, in which the file is unless it is in none; None for any.

    Raises:
        DataError: If it cannot be read, or is too large.
    """
    if place.is_dir():
        path = place / name
        if not path.exists():
            return None
        with read_errors(path), open_file(path) as file:
            content = file.read(largest + 1)
    else:
        with (
            read_errors(place, *DAMAGED_ZIP),
            open_file(place) as stored,
            open_zip(stored, place) as archive,
        ):
            places = None if folder is None else (name, f"{folder}/{name}")
            members = (each for each in archive.namelist() if Path(each).name == name)
            member = next((each for each in members if not places or each in places), None)
            if member is None:
                return None
            with archive.open(member) as file:
                content = file.read(largest + 1)
    if len(content) > largest:
        raise DataError(f"{name} in {place} has more than {largest:,} bytes: it is damaged")
    return content


def digest(graphs: Iterable[Graph]) -> str:
    """``sha256:...`` over all that is in some graphs, in order."""
    total = hashlib.sha256()
    for graph in graphs:
        masks = sorted((graph.masks or {}).items())
        named = (
            *(("x", graph.x), ("edge_index", graph.edge_index)),
            *(("edge_weight", graph.edge_weight), ("y", graph.y)),
            *masks,
        )
        for name, tensor in named:
            if tensor is not None:
                total.update(str((name, tuple(tensor.shape), tensor.dtype)).encode())
                total.update(tensor.contiguous().numpy().tobytes())  # also of no edges
    return f"sha256:{total.hexdigest()}"
