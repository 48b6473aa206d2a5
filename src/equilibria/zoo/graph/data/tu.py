"""Graphs with a class each in the text files of TU Dortmund (Morris et al. 2020)."""

from __future__ import annotations

import codecs
import os
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import torch

from equilibria.run.data.storage import DataError
from equilibria.zoo.graph.data.graph import Graph, separate_graphs, simplify
from equilibria.zoo.graph.data.sets import GraphSet, read_content
from equilibria.zoo.io import arrays
from equilibria.zoo.io.remote import Entry, Files, Remote

LARGEST = 1 << 30
"""Bytes that a text may have."""

_NEEDED = ("A", "graph_indicator", "graph_labels")
_NODES = ("node_labels", "node_attributes")


def read(files: Files, *, name: str, attributes: bool = False) -> GraphSet:
    """Graphs of molecules or proteins.

    Features of a node are its label, one-hot, with a column for each number from the smallest to
    the largest label of the set: 35 in COX2, of which 8 occur, 3 in PROTEINS and 7 in MUTAG. Edges
    are there in both directions as published, each once; labels of edges are not read.

    Args:
        files: The archive, or the files that are in it.
        name: As it is in the names of the files.
        attributes: Whether the nodes' attributes, real numbers as published, come after the label:
            3 in COX2, 1 in PROTEINS.

    Raises:
        DataError: If a file is damaged or another one, or there are no attributes.
    """
    first = files.paths[0]
    where = first if first.suffix == ".zip" else first.parent
    return GraphSet.of(files, *read_texts(where, name, attributes=attributes))


def load(root: str | os.PathLike[str], *, attributes: bool | None = None) -> GraphSet:
    """Read a folder of one's own with the text files of this format.

    ``NAME_A.txt`` has an edge a line, ``i, j``, from node i to node j, both counted from 1 over
    all graphs; ``NAME_graph_indicator.txt`` the graph of each node, counted from 1 and ascending;
    ``NAME_graph_labels.txt`` the class of each graph, a whole number. ``NAME_node_labels.txt``,
    whole numbers, and ``NAME_node_attributes.txt``, real numbers, may have as many columns as you
    like, separated by commas; nodes have one feature, 1, where there are neither. An undirected
    edge is two lines. An edge that is repeated counts once, and one from a node to itself not at
    all, both with a warning. What other files there are is not read.

    Args:
        root: The folder; it has files of one NAME.
        attributes: Whether to read the attributes; None for where there are any.

    Raises:
        DataError: If a file is missing, or something in it does not fit; the message names it.
    """
    root = Path(root).expanduser()
    found = sorted(path.name.removesuffix("_A.txt") for path in root.glob("*_A.txt"))
    if len(found) != 1:
        what = f"files of {', '.join(found)}" if found else "no file NAME_A.txt"
        raise DataError(f"{root} has {what}: expected the text files of one NAME, {EXPECTED}")
    (name,) = found
    graphs, labels = read_texts(root, name, attributes=attributes)
    lines = (_content(root, name, "A") or b"").strip().count(b"\n") + 1
    if dropped := lines - sum(graph.edges for graph in graphs):
        warnings.warn(
            f"{name}_A.txt in {root} has {dropped:,} edges that are repeated or join a node to "
            "itself: they are left out",
            stacklevel=2,
        )
    return GraphSet.of(root, graphs, labels)


EXPECTED = "NAME_A.txt, NAME_graph_indicator.txt and NAME_graph_labels.txt"


def _content(where: Path, name: str, part: str) -> bytes | None:
    return read_content(where, f"{name}_{part}.txt", LARGEST, folder=name)


def read_texts(
    where: Path, name: str, *, attributes: bool | None
) -> tuple[tuple[Graph, ...], tuple[str, ...]]:
    """The graphs in some texts, and what their classes are called.

    Args:
        where: A folder, or a zip archive of one.
        name: In the names of the files.
        attributes: Whether to read those of nodes; None for where there are any.

    Raises:
        DataError: If a file is missing or does not fit.
    """
    texts = {part: _content(where, name, part) for part in (*_NEEDED, *_NODES)}
    for part in _NEEDED:
        if texts[part] is None:
            raise DataError(f"{where} has no {name}_{part}.txt: expected {EXPECTED}")
    if attributes and texts["node_attributes"] is None:
        raise DataError(
            f"{where} has no {name}_node_attributes.txt: set task.attributes to false, or add it"
        )
    if attributes is False:
        texts["node_attributes"] = None

    def rows(part: str, kind: type[np.generic], columns: int | None = None) -> np.ndarray:
        return _rows(texts[part] or b"", f"{name}_{part}.txt in {where}", kind, columns)

    owner = rows("graph_indicator", np.int64, 1)[:, 0] - 1
    names = rows("graph_labels", np.int64, 1)[:, 0]
    edges = rows("A", np.int64, 2) - 1
    _check(owner, edges, len(names), f"{name}_graph_indicator.txt in {where}", f"{name}_A.txt")
    columns: list[np.ndarray] = []
    for part, kind in (("node_labels", np.int64), ("node_attributes", np.float64)):
        if texts[part] is None:
            continue
        found = rows(part, kind)
        if len(found) != len(owner):
            raise DataError(
                f"{where} has {len(owner)} nodes in {name}_graph_indicator.txt and {len(found)} in "
                f"{name}_{part}.txt: expected one line for each"
            )
        columns += [found] if part == "node_attributes" else [_one_hot(each) for each in found.T]
    features = np.concatenate(columns or [np.ones((len(owner), 1))], 1)
    x = torch.from_numpy(arrays.finite(features, f"the features of {name} in {where}"))
    classes = sorted(set(names.tolist()))
    if len(classes) < 2:
        raise DataError(
            f"{name}_graph_labels.txt in {where} has a single class: there is nothing to classify"
        )
    y = torch.from_numpy(np.searchsorted(classes, names))
    try:
        edge_index = simplify(torch.from_numpy(edges).T, len(x))
        graphs = separate_graphs(x, edge_index, None, torch.from_numpy(owner), y)
        return graphs, tuple(map(str, classes))
    except (ValueError, TypeError) as error:
        raise DataError(f"{where} is damaged: {error}") from None


def _check(
    owner: np.ndarray, edges: np.ndarray, graphs: int, indicator: str, adjacency: str
) -> None:
    where = f"{indicator} and {adjacency}"
    if (owner < 0).any():
        line = int(np.argmax(owner < 0)) + 1
        raise DataError(f"{indicator}, line {line}: graph {owner[line - 1] + 1}; count from 1")
    if (np.diff(owner) < 0).any():
        node = int(np.argmax(np.diff(owner) < 0)) + 2
        raise DataError(
            f"{indicator}, line {node}: the graphs of nodes do not ascend; sort nodes by graph"
        )
    if len(missing := sorted({*range(graphs)} - {*owner.tolist()})) or owner.max() >= graphs:
        what = f"graph {missing[0] + 1} has no node" if missing else f"a graph {owner.max() + 1}"
        raise DataError(f"{indicator}: {what}, but there are labels of {graphs} graphs")
    if len(wrong := np.argwhere((edges < 0) | (edges >= len(owner)))):
        line = int(wrong[0, 0])
        raise DataError(
            f"{where}: edge {line + 1} joins nodes {edges[line, 0] + 1} and {edges[line, 1] + 1}, "
            f"but there are {len(owner)} nodes, counted from 1"
        )
    if len(across := np.flatnonzero(owner[edges[:, 0]] != owner[edges[:, 1]])):
        raise DataError(f"{where}: edge {across[0] + 1} joins nodes of two graphs")


def _one_hot(labels: np.ndarray) -> np.ndarray:
    labels = labels - labels.min()
    if labels.max() >= 1 << 12:
        raise DataError(
            f"labels of nodes span {labels.max() + 1:,} numbers, too many for a column each: "
            "number them from 0"
        )
    return np.eye(int(labels.max()) + 1, dtype=np.float32)[labels]


def _rows(content: bytes, name: str, kind: type[np.generic], columns: int | None) -> np.ndarray:
    """The numbers of a text with commas, ``(lines, columns)``."""
    lines = content.removeprefix(codecs.BOM_UTF8).strip().splitlines()
    try:
        if not lines:
            raise ValueError("it is empty")
        table = [line.split(b",") for line in lines]
        count = columns or len(table[0])
        for number, row in enumerate(table, 1):
            if len(row) != count:
                raise ValueError(f"line {number} has {len(row)} columns, expected {count}")
        # As float64 first: some programs write the label 1 as 1.0.
        values = np.array(table, np.float64)
        if not np.isfinite(values).all():
            line = int(np.argwhere(~np.isfinite(values))[0, 0]) + 1
            raise ValueError(f"line {line} has {values[line - 1]}: expected finite numbers")
        if len(odd := np.argwhere(values != values.astype(kind))):
            line = int(odd[0, 0]) + 1
            raise ValueError(f"line {line} has {values[tuple(odd[0])]:g}: expected whole numbers")
        return values.astype(kind)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{name} is damaged or the wrong file ({error})") from None


# --- entries -------------------------------------------------------------------------------------


def _entry(name: str, size: str) -> Entry:
    low = name.lower()
    inside = tuple(f"{folder}/{each}" for folder in ("tu", "TU") for each in (name, low))
    archive = Remote(
        files=(f"{name}.zip",),
        # Nobody published a checksum: that of the first download is recorded.
        addresses=("https://www.chrsmrrs.com/graphkerneldatasets/",),
        license="free for research; cite Morris et al. 2020 (TUDataset)",
        size=size,
        inside=("tu", "TU", low, "."),
    )
    names = tuple(f"{name}_{part}.txt" for part in (*_NEEDED, _NODES[0]))
    unpacked = archive.as_folder(names, *inside, name, low, ".", checksums={})
    return Entry(name=low, title=name, read=partial(read, name=name), remotes=(archive, unpacked))


COX2 = _entry("COX2", "0.3 MB")
MUTAG = _entry("MUTAG", "0.1 MB")
PROTEINS = _entry("PROTEINS", "0.5 MB")
