"""What is checked of a graph as tensors, by layers and by data sets alike."""

from __future__ import annotations

import torch
from torch import Tensor


def check_graph(
    x: Tensor, edge_index: Tensor, edge_weight: Tensor | None, batch: Tensor | None = None
) -> None:
    """Refuse tensors that are no graph.

    Args:
        x: `(nodes, features)`, floating point.
        edge_index: `(2, edges)` int64, within the nodes.
        edge_weight: `(edges,)`, floating point, finite and >= 0; None for 1.
        batch: `(nodes,)` int64, ascending, the graph of each node; None for a single graph.

    Raises:
        TypeError: x or the weights are not floating, edge_index or batch not int64.
        ValueError: a shape, an index out of range, a weight that is negative or not finite, no
            node, a batch that is not ascending or leaves out a graph, an edge between two graphs.
    """
    if x.ndim != 2 or 0 in x.shape:
        raise ValueError(
            f"x has the shape {tuple(x.shape)}: expected (nodes, features), at least one of each"
        )
    if not x.is_floating_point():
        raise TypeError(f"x is {x.dtype}: expected floating-point features, as x.float() has them")
    _check_edges(edge_index, len(x))
    if edge_weight is not None:
        _check_weight(edge_weight.detach(), edge_index.shape[1])
    if batch is not None:
        check_batch(batch, len(x), edge_index)


def _check_edges(edge_index: Tensor, nodes: int) -> None:
    if edge_index.dtype != torch.int64:
        raise TypeError(
            f"edge_index is {edge_index.dtype}: expected int64, the numbers of nodes from 0"
        )
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        turned = edge_index.ndim == 2 and edge_index.shape[1] == 2
        raise ValueError(
            f"edge_index has the shape {tuple(edge_index.shape)}: expected (2, edges), senders "
            f"in the first row{'; transpose it with edge_index.T' if turned else ''}"
        )
    wrong = (edge_index < 0) | (edge_index >= nodes)
    if bool(wrong.any()):
        edge = int(torch.nonzero(wrong.any(0))[0])
        raise ValueError(
            f"edge {edge} joins nodes {edge_index[0, edge]} and {edge_index[1, edge]}: there are "
            f"{nodes} nodes, expected numbers from 0 to {nodes - 1}"
        )


def _check_weight(weight: Tensor, edges: int) -> None:
    if not weight.is_floating_point():
        raise TypeError(f"edge_weight is {weight.dtype}: expected floating point")
    if weight.shape != (edges,):
        raise ValueError(
            f"edge_weight has the shape {tuple(weight.shape)}: expected ({edges},), one for each "
            "edge"
        )
    wrong = ~torch.isfinite(weight) | (weight < 0)
    if bool(wrong.any()):
        edge = int(torch.nonzero(wrong)[0])
        raise ValueError(
            f"edge {edge} has the weight {float(weight[edge]):g}: expected finite weights that are "
            "not negative"
        )


def check_batch(batch: Tensor, nodes: int, edge_index: Tensor) -> None:
    """Refuse a batch that does not tell the graph of each node, or an edge between two graphs."""
    if batch.dtype != torch.int64:
        raise TypeError(f"batch is {batch.dtype}: expected int64, the graph of each node")
    if batch.shape != (nodes,):
        raise ValueError(
            f"batch has the shape {tuple(batch.shape)}: expected ({nodes},), the graph of each node"
        )
    step = batch.diff()
    if int(batch[0]) < 0:
        raise ValueError(f"batch has the graph {int(batch[0])}: expected graphs counted from 0")
    if bool((step < 0).any()):
        node = int(torch.nonzero(step < 0)[0]) + 1
        raise ValueError(
            f"batch is not sorted: node {node} is of graph {int(batch[node])} and the node before "
            f"of graph {int(batch[node - 1])}; put the nodes of each graph together, in order"
        )
    if int(batch[0]) != 0 or bool((step > 1).any()):
        empty = int((batch.bincount() == 0).nonzero()[0])
        raise ValueError(
            f"batch: graph {empty} has no node; expected graphs 0, 1, ... without a gap"
        )
    sender, receiver = batch[edge_index]
    if len(wrong := (sender != receiver).nonzero()):
        edge = int(wrong[0])
        raise ValueError(
            f"edge {edge} joins node {int(edge_index[0, edge])} of graph {int(sender[edge])} and "
            f"node {int(edge_index[1, edge])} of graph {int(receiver[edge])}; expected edges "
            "within a graph"
        )
