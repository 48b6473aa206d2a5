"""Citation networks with the public split: Cora, Citeseer and Pubmed (Yang et al. 2016)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equilibria.run.data.storage import DataError, open_file, read_errors
from equilibria.zoo.graph.data import pickles
from equilibria.zoo.graph.data.graph import NONE, SPLITS, Graph, add_reverse, make_masks
from equilibria.zoo.graph.data.sets import NodeSet
from equilibria.zoo.io import arrays
from equilibria.zoo.io.remote import Entry, Files, Remote

VALID = 500
"""Validation nodes: those after the training nodes."""

LABELS = {
    "cora": (
        *("Theory", "Reinforcement_Learning", "Genetic_Algorithms", "Neural_Networks"),
        *("Probabilistic_Methods", "Case_Based", "Rule_Learning"),
    ),
    "citeseer": ("AI", "ML", "IR", "DB", "Agents", "HCI"),
    "pubmed": ("Experimental", "Type 1", "Type 2"),
}
"""What the classes are called."""

_PARTS = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")
_ARRAYS = (*("indptr", "indices", "data", "shape", "labels", "edges"), *("train", "val", "test"))


def read(files: Files, *, name: str) -> NodeSet:
    """One graph: a document's features are its words, and each citation is an edge both ways.

    As published, 20 nodes of each class are training nodes, the next 500 validation nodes, and
    1,000 test nodes.
    Features are as published, 0 and 1 in Cora and Citeseer, and are not normalised. Documents of
    Citeseer of which nothing is known but their number keep zeros, no class and, most of them, no
    edge.

    Args:
        files: The eight published files, or their content as an .npz file, which has the arrays
            ``indptr``, ``indices``, ``data`` and ``shape`` of the features, compressed by rows,
            ``labels`` (-1 for none), ``edges`` ``(edges, 2)`` and the nodes ``train``, ``val``
            and ``test``.
        name: In `LABELS`.

    Raises:
        DataError: If a file is damaged or another one.
    """
    paths = files.paths
    found = _read_archive(paths[0]) if paths[0].suffix == ".npz" else _read_pickles(paths)
    graph = _graph(*found, paths[0], len(LABELS[name]))
    return NodeSet.of(files, dict.fromkeys(SPLITS, (graph,)), labels=LABELS[name])


_Found = tuple[np.ndarray, np.ndarray, np.ndarray, dict[str, np.ndarray]]
"""Features, classes, edges ``(edges, 2)``, and the nodes of each part."""


def _graph(
    x: np.ndarray,
    y: np.ndarray,
    edges: np.ndarray,
    places: dict[str, np.ndarray],
    path: Path,
    classes: int,
) -> Graph:
    try:
        numbers = {part: torch.from_numpy(n.astype(np.int64)) for part, n in places.items()}
        masks = make_masks(numbers, len(x))
        edge_index = torch.from_numpy(edges.astype(np.int64)).T.contiguous()
        graph = Graph(
            torch.from_numpy(x), edge_index, y=torch.from_numpy(y.astype(np.int64)), masks=masks
        )
        if int(y.max()) != classes - 1:
            raise ValueError(f"it has the classes 0 to {int(y.max())}, expected {classes}")
    except (ValueError, TypeError, IndexError) as error:
        raise DataError(f"{path} is damaged or the wrong file: {error}") from None
    return Graph(graph.x, add_reverse(edge_index, len(x)), y=graph.y, masks=masks)


def _read_archive(path: Path) -> _Found:
    found = arrays.read(path)
    if missing := [name for name in _ARRAYS if name not in found]:
        raise DataError(f"{path} has no array {', '.join(missing)}: it is another file")
    try:
        rows, columns = (int(each) for each in found["shape"])
        x = pickles.dense(found["indptr"], found["indices"], found["data"], (rows, columns))
    except (ValueError, TypeError, IndexError) as error:
        raise DataError(f"{path} is damaged or the wrong file: {error}") from None
    places = {"train": found["train"], "valid": found["val"], "test": found["test"]}
    return x, found["labels"], found["edges"].reshape(-1, 2), places


def _read_pickles(paths: tuple[Path, ...]) -> _Found:
    """The eight files: `allx` has all nodes but the test nodes, which `tx` has in another order.

    In the graph a test node has the number that its line of `test.index` says; of Citeseer, some
    numbers in between are of no line.
    """
    found: dict[str, Any] = {}
    for part, path in zip(_PARTS[:-1], paths[:-1], strict=True):
        found[part] = pickles.read(path)
    numbers = _numbers(paths[-1])
    try:
        train, first = len(found["y"]), len(found["allx"])
        count = max(first, int(numbers.max()) + 1)
        sizes = {part: len(found[part]) for part in _PARTS[:-2]}
        expected = {"x": train, "y": train, "allx": first, "ally": first}
        if sizes != {**expected, "tx": len(numbers), "ty": len(numbers)} or numbers.min() < first:
            raise ValueError(f"lines: {sizes}, and {len(numbers)} tests from {numbers.min()} on")
        x = np.zeros((count, found["allx"].shape[1]), np.float32)
        one_hot = np.zeros((count, found["ally"].shape[1]), np.int64)
        for all_, tested, whole in (("allx", "tx", x), ("ally", "ty", one_hot)):
            whole[:first], whole[numbers] = found[all_], found[tested]
        y = np.where(one_hot.any(1), one_hot.argmax(1), NONE)
        lists = found["graph"]
        edges = np.array([(a, b) for a, row in lists.items() for b in row], np.int64)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise DataError(
            f"{paths[0].parent} has files of {paths[0].name.rpartition('.')[0]} that do not fit "
            f"together ({error}): delete them and run again"
        ) from None
    places = {"train": np.arange(train), "valid": np.arange(train, train + VALID), "test": numbers}
    return x, y, edges.reshape(-1, 2), places


def _numbers(path: Path) -> np.ndarray:
    with read_errors(path, ValueError), open_file(path) as file:
        return np.array(file.read(1 << 20).split(), np.int64)


# --- entries -------------------------------------------------------------------------------------

_COMMIT = "af6abf468a772cc055bec88c52e4d6f51b7c37e3"
_LICENSE = "MIT for the files; the citation data of Sen et al. 2008 (LINQS) for research"

# Of the files at this commit of the authors' repository.
_CHECKSUMS = {
    "ind.cora.allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "ind.cora.ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "ind.cora.graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "ind.cora.test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    "ind.cora.tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "ind.cora.ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "ind.cora.x": "23cfa55d91c6f624233f5eb7b6e3f141f1bd2b2ae39608a63cf5d084bb27baab",
    "ind.cora.y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
}


def _entry(name: str, title: str, size: str) -> Entry:
    files = tuple(f"ind.{name}.{part}" for part in _PARTS)
    inside = ("planetoid", name, ".")
    official = Remote(
        files=files,
        addresses=(f"https://github.com/kimiyoung/planetoid/raw/{_COMMIT}/data/",),
        checksums={f: f"sha256:{_CHECKSUMS[f]}" for f in files if f in _CHECKSUMS},
        license=_LICENSE,
        size=size,
        inside=inside,
    )
    return Entry(
        name=name,
        title=title,
        read=partial(read, name=name),
        # The same content without pickles, where somebody made that of it.
        remotes=(official, Remote(files=(f"{name}.npz",), license=_LICENSE, inside=inside)),
    )


CORA = _entry("cora", "Cora", "0.6 MB")
CITESEER = _entry("citeseer", "Citeseer", "1.5 MB")
PUBMED = _entry("pubmed", "Pubmed", "40 MB")
