"""Data sets of graphs: with classes of nodes, or a class each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equilibria.zoo.graph.data.graph import SPLITS, Graph
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
            name=files.entry.name,
            title=files.title,
            source=files.source,
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
