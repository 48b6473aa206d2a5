"""A user's own graphs as arrays in one .npz file; a folder of texts is read by `tu`."""

from __future__ import annotations

import os
import warnings
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equilibria.run.data.dataset import UserData
from equilibria.run.data.storage import DataError
from equilibria.zoo.graph.checks import check_batch
from equilibria.zoo.graph.data import tu
from equilibria.zoo.graph.data.graph import SPLITS, Graph, separate_graphs
from equilibria.zoo.graph.data.sets import GraphSet, NodeSet, digest, origin
from equilibria.zoo.io import arrays

NODES = (
    "expected FILE.npz with the arrays x (nodes, features), edge_index (2, edges) and y (nodes,), "
    "perhaps edge_weight (edges,), and the masks train, valid and test (nodes,)"
)
"""What is read of one graph."""

GRAPHS = (
    f"expected FOLDER with the texts {tu.EXPECTED}; or FILE.npz with the arrays x (nodes, "
    "features), edge_index (2, edges), batch (nodes,) and y (graphs,), perhaps edge_weight (edges,)"
)
"""What is read of many graphs."""

SHARES = {"train": 0.6, "valid": 0.2, "test": 0.2}
"""Of each class, where a file has no masks."""

# Of the order in which nodes are divided: the same file is always divided alike.
_SEED = 0


def load_nodes(path: str | os.PathLike[str], *, whole: bool = False) -> NodeSet:
    """Read one graph whose nodes have classes from an .npz file.

    - ``x``: features, ``(nodes, features)``.
    - ``edge_index``: whole numbers, ``(2, edges)``: edge k goes from node ``edge_index[0, k]`` to
      ``edge_index[1, k]``, counted from 0. An undirected edge is there twice. An edge that is
      repeated counts as often as it is there, with a warning; networks that give each node a
      self-loop put it in the place of the file's own (`zoo.graph.model.GraphLayer`).
    - ``y``: classes, whole numbers from 0, ``(nodes,)``, -1 for nodes in no mask whose class is
      unknown; or ``(nodes, labels)``, 0 or 1, where a node can have several labels.
    - ``edge_weight``, optional: ``(edges,)``, not negative.
    - ``train``, ``test`` and perhaps ``valid``: which nodes are in each part, bool, ``(nodes,)``;
      no node is in two.
      Where there is none of them, the nodes of each class are divided 60/20/20 at random, always
      alike.

    Args:
        path: The file.
        whole: Whether all nodes whose class is known test, if there are no masks.

    Raises:
        DataError: If the file is missing, damaged, or something in it does not fit; the message
            says what.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise DataError(f"{path} is a folder: {NODES}")
    found = _arrays(path, ("x", "edge_index", "y"), ("edge_weight", *SPLITS), NODES)
    x, edge_index, edge_weight = _tensors(found, path)
    y = _targets(found["y"], path)
    masks = {name: _mask(found[name], name, path) for name in SPLITS if name in found}
    if masks and not {"train", "test"} <= set(masks):
        raise DataError(f"{path} has the mask {', '.join(masks)}: expected train and test, or none")
    try:
        graph = Graph(x, edge_index, edge_weight, y)
        if y.ndim == 1 and not whole:
            _check_classes(y)
        if not masks:
            if y.ndim == 1 and not whole and bool((y < 0).any()):
                raise ValueError(
                    f"node {int(torch.nonzero(y < 0)[0])} has the class -1 in y: give all nodes a "
                    "class, or say with the masks train, valid and test which nodes are used"
                )
            masks = {"test": y.reshape(len(y), -1).amax(1) >= 0} if whole else _divide(y, path)
        for name, mask in masks.items():
            if not bool(mask.any()):
                raise ValueError(f"no node is in the mask {name}")
        graph = Graph(x, edge_index, edge_weight, y, masks)
        _check_disjoint(masks)
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: {error}") from None
    _warn_of_edges(graph, path)
    parts: dict[str, Any] = {name: (graph,) if name in masks else () for name in SPLITS}
    return NodeSet(
        **origin(path),
        **parts,
        labels=_labels(y, path),
        multilabel=y.ndim == 2,
        checksum=digest([graph]),
    )


def load_graphs(path: str | os.PathLike[str], **options: bool) -> GraphSet:
    """Read many graphs with a class each, from a folder of texts (`tu.load`) or an .npz file.

    The file has all graphs side by side:

    - ``x``: features, ``(nodes, features)``, the nodes of the first graph first.
    - ``edge_index``: whole numbers, ``(2, edges)``, nodes counted over all graphs from 0.
    - ``batch``: the graph of each node, ``(nodes,)``, ascending from 0.
    - ``y``: the class of each graph, whole numbers from 0, ``(graphs,)``.
    - ``edge_weight``, optional: ``(edges,)``, not negative.

    Args:
        path: The folder or file.
        options: What `tu.load` takes, for a folder.

    Raises:
        DataError: If something is missing, damaged, or does not fit; the message says what.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        return tu.load(path, **options)
    if options.get("attributes"):
        raise DataError(
            f"{path}: attributes are for a folder of texts, set task.attributes to null"
        )
    found = _arrays(path, ("x", "edge_index", "batch", "y"), ("edge_weight",), GRAPHS)
    x, edge_index, edge_weight = _tensors(found, path)
    y = _targets(found["y"], path)
    if y.ndim != 1:
        raise DataError(f"y in {path} has the shape {tuple(y.shape)}: expected (graphs,)")
    owner = _whole(found["batch"], f"batch in {path}")
    try:
        whole = Graph(x, edge_index, edge_weight)
        check_batch(owner, len(x), edge_index)
        if (count := int(owner[-1]) + 1) != len(y):
            raise ValueError(f"batch has {count} graphs, and y the classes of {len(y)}")
        graphs = separate_graphs(x, edge_index, edge_weight, owner, y)
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: {error}") from None
    _warn_of_edges(whole, path)
    return GraphSet.of(path, graphs, _labels(y, path))


def _warn_of_edges(graph: Graph, path: Path) -> None:
    """Warn of edges that are not used as one might expect."""
    sender, receiver = graph.edge_index
    if repeated := graph.edges - len((sender * graph.nodes + receiver).unique()):
        warnings.warn(
            f"{path} has {repeated:,} edges that are repeated: the weights of equal edges add up",
            stacklevel=3,
        )
    own = sender == receiver
    weight = torch.ones(graph.edges) if graph.edge_weight is None else graph.edge_weight
    if len(odd := weight[own & (weight != 1)]):
        warnings.warn(
            f"{path} has {int(own.sum()):,} edges from a node to itself, one with the weight "
            f"{float(odd[0]):g}: a model with self_loops replaces them by edges of weight 1; set "
            "model.self_loops to false to keep them",
            stacklevel=3,
        )


def _arrays(
    path: Path, needed: tuple[str, ...], optional: tuple[str, ...], expected: str
) -> dict[str, np.ndarray]:
    if path.suffix.lower() != ".npz" or not path.is_file():
        raise DataError(f"there is no file {path} with arrays; {expected}")
    found = arrays.read(path)
    if not set(needed) <= set(found) <= {*needed, *optional}:
        raise DataError(f"{path} has the arrays {', '.join(found) or '(none)'}: {expected}")
    return found


def _tensors(found: dict[str, np.ndarray], path: Path) -> tuple[Tensor, Tensor, Tensor | None]:
    x = torch.from_numpy(arrays.finite(found["x"], f"x in {path}"))
    weight = found.get("edge_weight")
    if weight is not None:
        weight = torch.from_numpy(arrays.finite(weight, f"edge_weight in {path}"))
    return x, _whole(found["edge_index"], f"edge_index in {path}"), weight


def _whole(array: np.ndarray, name: str) -> Tensor:
    return torch.from_numpy(arrays.whole(array, name))


def _mask(array: np.ndarray, name: str, path: Path) -> Tensor:
    if array.dtype.kind != "b":
        raise DataError(
            f"{name} in {path} is an array of {array.dtype}: expected a bool for each node"
        )
    return torch.from_numpy(array.copy())


def _targets(array: np.ndarray, path: Path) -> Tensor:
    if array.ndim == 2:
        return torch.from_numpy(arrays.finite(array, f"y in {path}"))
    return _whole(array, f"y in {path}")


def _check_classes(y: Tensor) -> None:
    kinds = y[y >= 0].unique()
    if len(gaps := torch.nonzero(kinds != torch.arange(len(kinds)))):
        raise ValueError(
            f"y has the class {int(kinds[-1])}, but no node of class {int(gaps[0])}: number the "
            "classes from 0, without a gap"
        )


def _check_disjoint(masks: dict[str, Tensor]) -> None:
    for one, other in combinations(masks, 2):
        if len(both := torch.nonzero(masks[one] & masks[other])):
            raise ValueError(
                f"node {int(both[0])} is in the masks {one} and {other}: expected each node in one "
                "part at most"
            )


def _labels(y: Tensor, path: Path) -> tuple[str, ...]:
    count = y.shape[1] if y.ndim == 2 else int(y.max()) + 1
    if y.ndim == 1 and count < 2:
        raise DataError(f"{path} has a single class in y: there is nothing to classify")
    return tuple(map(str, range(count)))


def _divide(y: Tensor, path: Path) -> dict[str, Tensor]:
    """Masks of 60, 20 and 20 % of each class, or of all nodes where a node has several labels."""
    generator = torch.Generator().manual_seed(_SEED)
    masks = {name: torch.zeros(len(y), dtype=torch.bool) for name in SPLITS}
    kinds = y if y.ndim == 1 else torch.zeros(len(y), dtype=torch.int64)
    for kind in kinds.unique():
        nodes = torch.nonzero(kinds == kind)[:, 0]
        if len(nodes) < len(SPLITS):
            raise DataError(
                f"{path} has too few nodes of class {int(kind)} for train, valid and test, "
                f"{len(nodes)}: add nodes, or give the masks"
            )
        nodes = nodes[torch.randperm(len(nodes), generator=generator)]
        aside = [max(1, round(SHARES[name] * len(nodes))) for name in SPLITS[1:]]
        sizes = [len(nodes) - sum(aside), *aside]
        for name, part in zip(SPLITS, nodes.split(sizes), strict=True):
            masks[name][part] = True
    return masks


OWN_GRAPHS = UserData(load_graphs, GRAPHS, arrays=True)
"""A user's graphs with a class each."""

OWN_NODES = UserData(load_nodes, NODES, arrays=True)
"""A user's graph whose nodes have classes."""
