"""Proteins and their interactions in 24 human tissues: PPI (Zitnik and Leskovec 2017)."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import torch

from equilibria.run.data.storage import DataError
from equilibria.zoo.graph.data.graph import Graph, add_reverse
from equilibria.zoo.graph.data.sets import NodeSet, read_content
from equilibria.zoo.io import arrays
from equilibria.zoo.io.remote import Entry, Files, Remote

GRAPHS = {"train": 20, "valid": 2, "test": 2}
"""Tissues of each part, as published by Hamilton et al. 2017 (GraphSAGE)."""

FEATURES, LABELS = 50, 121

_PARTS = ("graph.json", "feats.npy", "labels.npy", "graph_id.npy")
_NAMES = tuple(f"{split}_{part}" for split in GRAPHS for part in _PARTS)

# Bytes that a file may have: train_graph.json has about 60 MB.
_LARGEST = 1 << 28


def read(files: Files) -> NodeSet:
    """A graph for each tissue, whose nodes, proteins, have any of 121 functions.

    20 tissues are for training, 2 for validation and 2 for testing; their graphs share no node.
    Edges are there in both directions, each once, without those from a node to itself. Features are
    as published.

    Args:
        files: The archive, or the files that are in it.

    Raises:
        DataError: If a file is missing, damaged or another one.
    """
    paths = files.paths
    parts = {split: _graphs(paths, split) for split in GRAPHS}
    labels = tuple(f"function {number}" for number in range(1, LABELS + 1))
    return NodeSet.of(files, parts, labels=labels, multilabel=True)


def _graphs(paths: tuple[Path, ...], split: str) -> list[Graph]:
    folders = {path.name: path.parent for path in paths}

    def get(part: str) -> bytes:
        name = f"{split}_{part}"
        content = read_content(folders.get(name, paths[0]), name, _LARGEST)
        if content is None:
            raise DataError(f"{paths[0]} does not contain {name}: it is a different file")
        return content

    try:
        tree = json.loads(get(_PARTS[0]))
        links = np.array([(link["source"], link["target"]) for link in tree["links"]], np.int64)
        links = links.reshape(-1, 2)
        x, y, owner = (_array(get(part)) for part in _PARTS[1:])
        if x.shape[1:] != (FEATURES,) or y.shape != (len(x), LABELS) or owner.shape != (len(x),):
            raise ValueError(f"arrays of shapes {x.shape}, {y.shape} and {owner.shape}")
        if len(tissues := np.unique(owner)) != GRAPHS[split]:
            raise ValueError(f"{len(tissues)} tissues, expected {GRAPHS[split]}")
        if len(links) and (links.min() < 0 or links.max() >= len(x)):
            raise ValueError(f"an edge of node {links.max()}, and there are {len(x)}")
        return [_tissue(x, y, owner == tissue, links) for tissue in tissues]
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise DataError(
            f"{paths[0]}: the {split} part is damaged or another one ({error!r}); delete it and "
            "run again"
        ) from None


def _tissue(x: np.ndarray, y: np.ndarray, mine: np.ndarray, links: np.ndarray) -> Graph:
    number = np.cumsum(mine) - 1
    kept = mine[links[:, 0]]
    if (kept != mine[links[:, 1]]).any():
        raise ValueError("an edge joins two tissues")
    edge_index = torch.from_numpy(number[links[kept]]).T
    count = int(mine.sum())
    features = torch.from_numpy(arrays.finite(x[mine], "feats"))
    return Graph(
        features, add_reverse(edge_index, count), y=torch.from_numpy(y[mine].astype(np.float32))
    )


def _array(content: bytes) -> np.ndarray:
    return np.lib.format.read_array(io.BytesIO(content), allow_pickle=False)


_ARCHIVE = Remote(
    files=("ppi.zip",),
    # The copy by tissue that the graph libraries use: GraphSAGE's own file has one graph and does
    # not say who is of which tissue. Nobody published a checksum; that of the first download is
    # recorded.
    addresses=("https://data.dgl.ai/dataset/",),
    license="as GraphSAGE's, http://snap.stanford.edu/graphsage/, for research",
    size="31 MB",
    inside=("ppi", "PPI", "."),
)
PPI = Entry(
    name="ppi",
    title="PPI",
    read=read,
    remotes=(
        _ARCHIVE,
        _ARCHIVE.as_folder(_NAMES, "ppi", "PPI", "ppi/raw", "PPI/raw", checksums={}),
    ),
)
