"""A graph as tensors, and what of it is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from equilibria.zoo.graph.checks import check_graph

SPLITS = ("train", "valid", "test")
"""Parts that the nodes of a graph, or the graphs of a set, are in."""

NONE = -1
"""In a target: this node has none."""


@dataclass(frozen=True)
class Graph:
    """A graph, directed or not: an undirected edge is there in both directions.

    Attributes:
        x: Features of the nodes, ``(nodes, features)``, floating point.
        edge_index: ``(2, edges)``, int64; edge k carries a message from node ``edge_index[0, k]``
            to node ``edge_index[1, k]``. Nodes without an edge are allowed.
        edge_weight: Of each edge, ``(edges,)``, not negative; None for 1.
        y: The target: the class of each node, ``(nodes,)``, int64, -1 where it is unknown; or, if a
            node can have several labels, ``(nodes, labels)``, 0 or 1; or the class of the whole
            graph, ``()``, int64. None if there is none.
        masks: Which nodes are in "train", "valid" and "test", ``(nodes,)`` each, bool; None where
            nodes are not divided.

    Raises:
        TypeError: If a tensor has another dtype.
        ValueError: If there is no node, a shape does not fit, an edge joins a node that is not
            there, a feature or weight is not finite, a weight is negative, or a node that is in a
            mask has no class.
    """

    x: Tensor
    edge_index: Tensor
    edge_weight: Tensor | None = None
    y: Tensor | None = None
    masks: Mapping[str, Tensor] | None = field(default=None)

    def __post_init__(self) -> None:
        check_graph(self.x, self.edge_index, self.edge_weight)
        if not bool(torch.isfinite(self.x).all()):
            node = int(torch.nonzero(~torch.isfinite(self.x))[0, 0])
            raise ValueError(f"x has a feature of node {node} that is not finite")
        if self.y is not None:
            _check_targets(self.y, len(self.x))
        for name, mask in (self.masks or {}).items():
            self._check_mask(name, mask)

    def _check_mask(self, name: str, mask: Tensor) -> None:
        if name not in SPLITS or mask.dtype != torch.bool or mask.shape != (len(self.x),):
            raise ValueError(
                f"the mask '{name}' has the shape {tuple(mask.shape)} and is {mask.dtype}: "
                f"expected ({len(self.x)},), bool, one entry a node, called "
                f"{', '.join(SPLITS[:-1])} or {SPLITS[-1]}"
            )
        if self.y is None or self.y.ndim == 0:
            raise ValueError(f"there is a mask '{name}', but no y of each node")
        if self.y.ndim == 1 and len(lost := torch.nonzero(mask & (self.y < 0))):
            raise ValueError(
                f"node {int(lost[0])} is in the {name} mask and its class is "
                f"{int(self.y[lost[0]])}: classes count from 0, and -1 stands for an unknown one, "
                "which no mask may have"
            )

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.x)

    @property
    def edges(self) -> int:
        """Number of edges, an undirected one counted twice."""
        return self.edge_index.shape[1]

    @property
    def directed(self) -> bool:
        """Whether some edge is not there in the other direction too, with the same weight."""
        forth, back = (self._merge(pair) for pair in (self.edge_index, self.edge_index.flip(0)))
        return not all(torch.equal(a, b) for a, b in zip(forth, back, strict=True))

    def _merge(self, edges: Tensor) -> tuple[Tensor, Tensor]:
        """Each edge once, as one number, and what its weights add up to."""
        weight = torch.ones(self.edges) if self.edge_weight is None else self.edge_weight
        code, place = (edges[0] * self.nodes + edges[1]).unique(return_inverse=True)
        return code, weight.new_zeros(len(code)).index_add_(0, place, weight)

    def targets(self, split: str) -> Tensor:
        """The target of each node, -1 (in all columns) where it is not in a split.

        Raises:
            ValueError: If the graph has masks and none of this name, or no target for each node.
        """
        if self.y is None or self.y.ndim == 0:
            raise ValueError("the graph has no y of each node")
        if self.masks is None:
            return self.y
        if split not in self.masks:
            raise ValueError(f"there is no mask '{split}'; there are: {', '.join(self.masks)}")
        left_out = ~self.masks[split]
        return self.y.masked_fill(left_out if self.y.ndim == 1 else left_out[:, None], NONE)


def normalize_features(graph: Graph) -> Graph:
    """The graph with features that add up to 1 at each node; a node that has none keeps zeros.

    Raises:
        ValueError: If a feature is negative.
    """
    if bool((graph.x < 0).any()):
        raise ValueError("negative features cannot be normalised to add up to 1")
    return replace(graph, x=graph.x / graph.x.sum(1, keepdim=True).clamp_min(1e-12))


def add_reverse(edge_index: Tensor, nodes: int) -> Tensor:
    """Edges in both directions, each once, sorted, without those from a node to itself."""
    sender, receiver = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    return simplify(torch.stack([sender, receiver]), nodes)


def simplify(edge_index: Tensor, nodes: int) -> Tensor:
    """Each edge once, sorted by sender, without those from a node to itself."""
    sender, receiver = edge_index[:, edge_index[0] != edge_index[1]]
    code = (sender * nodes + receiver).unique()
    return torch.stack([code // nodes, code % nodes])


def _check_targets(y: Tensor, nodes: int) -> None:
    if y.ndim == 2:
        if len(y) != nodes:
            raise ValueError(f"y has the shape {tuple(y.shape)}: expected ({nodes}, labels)")
        if len(wrong := y[(y != 0) & (y != 1)]):
            raise ValueError(
                f"y has the value {float(wrong[0]):g}: expected 1 for a label that a node has, and "
                "0 for one that it has not"
            )
        return
    if y.dtype != torch.int64:
        raise TypeError(f"y is {y.dtype}: expected int64, classes counted from 0")
    if y.shape not in ((), (nodes,)):
        raise ValueError(
            f"y has the shape {tuple(y.shape)}: expected ({nodes},), a class for each node, or (), "
            "one for the graph"
        )
    least = int(y.min())
    if least < (0 if y.ndim == 0 else NONE):
        raise ValueError(f"y has the class {least}: expected classes counted from 0")


def make_masks(places: Mapping[str, Tensor], nodes: int) -> dict[str, Tensor]:
    """Masks by the numbers of the nodes that are in each part."""
    masks = {name: torch.zeros(nodes, dtype=torch.bool) for name in places}
    for name, numbers in places.items():
        masks[name][numbers] = True
    return masks


# --- joining --------------------------------------------------------------------------------------

# Several graphs side by side, as one that falls into parts.


Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""What a model is given: ``(x, edge_index, edge_weight, batch)``."""


def join_graphs(graphs: Sequence[Graph]) -> Inputs:
    """Graphs side by side, as one that falls into parts.

    Returns:
        ``x`` ``(nodes, features)`` of all; ``edge_index`` ``(2, edges)`` counting the nodes of
        all; ``edge_weight`` ``(edges,)``, or None if no graph has any; and ``batch`` ``(nodes,)``,
        int64, the graph of each node, ascending, or None for a single graph.

    Raises:
        ValueError: If there is no graph, or their numbers of features differ.
    """
    if not graphs:
        raise ValueError("there is no graph: expected at least one")
    if len(graphs) == 1:
        (graph,) = graphs
        return graph.x, graph.edge_index, graph.edge_weight, None
    if len(widths := {graph.x.shape[1] for graph in graphs}) > 1:
        raise ValueError(
            f"graphs have {', '.join(map(str, sorted(widths)))} features: expected the same number"
        )
    sizes = torch.tensor([graph.nodes for graph in graphs])
    first = sizes.cumsum(0) - sizes
    edges = [graph.edge_index + at for graph, at in zip(graphs, first, strict=True)]
    weights = [graph.edge_weight for graph in graphs]
    weight = None
    if any(each is not None for each in weights):
        given = zip(weights, graphs, strict=True)
        weight = torch.cat([g.x.new_ones(g.edges) if w is None else w for w, g in given])
    batch = torch.arange(len(graphs)).repeat_interleave(sizes)
    return torch.cat([graph.x for graph in graphs]), torch.cat(edges, dim=1), weight, batch


def separate_graphs(
    x: Tensor, edge_index: Tensor, weight: Tensor | None, owner: Tensor, y: Tensor
) -> tuple[Graph, ...]:
    """Graphs out of one that falls into parts, each with its own numbers of nodes.

    Args:
        x: ``(nodes, features)``.
        edge_index: ``(2, edges)``, counting the nodes of all.
        weight: ``(edges,)``, or None.
        owner: The graph of each node, ``(nodes,)``, ascending.
        y: The class of each graph.
    """
    sizes = owner.bincount(minlength=len(y))
    first = sizes.cumsum(0) - sizes
    of = owner[edge_index[0]]
    order = of.argsort(stable=True)
    counts = of.bincount(minlength=len(y)).tolist()
    local = (edge_index - first[of])[:, order].split(counts, 1)
    weights = [None] * len(y) if weight is None else weight[order].split(counts)
    parts = zip(x.split(sizes.tolist()), local, weights, y, strict=True)
    # Copies: a graph that is kept alone should not keep all the others.
    return tuple(
        Graph(a.clone(), b.clone(), None if w is None else w.clone(), c.clone())
        for a, b, w, c in parts
    )


@dataclass(frozen=True)
class Joined:
    """Graphs with a target each, or one for each of their nodes; some of them are a batch.

    Attributes:
        graphs: In an order that never changes.
        split: Of masked graphs, whose nodes are asked for; elsewhere it only names the part.
    """

    graphs: tuple[Graph, ...]
    split: str

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: slice | Tensor) -> tuple[Inputs, Tensor]:
        """`join_graphs` of those that a slice or a tensor of positions names, and their targets.

        These are ``(graphs,)``, or ``(nodes, ...)`` with -1 where nothing is asked.
        """
        places = range(len(self))[index] if isinstance(index, slice) else index.tolist()
        chosen = [self.graphs[place] for place in places]
        return join_graphs(chosen), self._targets(chosen)

    def _targets(self, chosen: Sequence[Graph]) -> Tensor:
        ys = [graph.y for graph in chosen]
        if any(y is None for y in ys):
            raise ValueError("a graph has no y: there is nothing to learn")
        if all(y is not None and y.ndim == 0 for y in ys):
            return torch.stack([y for y in ys if y is not None])
        return torch.cat([graph.targets(self.split) for graph in chosen])
