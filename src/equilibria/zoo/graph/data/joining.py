"""Several graphs side by side, as one that falls into parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equilibria.zoo.graph.data.graph import Graph

Inputs = tuple[Tensor, Tensor, Tensor | None, Tensor | None]
"""What a model is given: ``(x, edge_index, edge_weight, batch)``."""


def joined(graphs: Sequence[Graph]) -> Inputs:
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
    weight = None
    if any(graph.edge_weight is not None for graph in graphs):
        weight = torch.cat(
            [
                graph.x.new_ones(graph.edges) if graph.edge_weight is None else graph.edge_weight
                for graph in graphs
            ]
        )
    batch = torch.arange(len(graphs)).repeat_interleave(sizes)
    return torch.cat([graph.x for graph in graphs]), torch.cat(edges, dim=1), weight, batch


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
        """`joined` graphs that a slice or a tensor of positions names, and their targets.

        These are ``(graphs,)``, or ``(nodes, ...)`` with -1 where nothing is asked.
        """
        places = range(len(self))[index] if isinstance(index, slice) else index.tolist()
        chosen = [self.graphs[place] for place in places]
        return joined(chosen), self._targets(chosen)

    def _targets(self, chosen: Sequence[Graph]) -> Tensor:
        ys = [graph.y for graph in chosen]
        if any(y is None for y in ys):
            raise ValueError("a graph has no y: there is nothing to learn")
        if all(y is not None and y.ndim == 0 for y in ys):
            return torch.stack([y for y in ys if y is not None])
        return torch.cat([graph.asked(self.split) for graph in chosen])
