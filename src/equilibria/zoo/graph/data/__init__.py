"""Graphs whose nodes have classes, and graphs that have one each.

    cora = eq.data.load("cora")                 # one graph with masks: cora.graph.masks["train"]
    cox2 = eq.data.load("cox2")                 # cox2.graphs, cox2.targets
    x, edge_index, weight, batch = eq.data.graph.join_graphs(cox2.graphs[:8])

`chains` makes a graph that needs no files; `load_nodes` and `load_graphs` read one's own.
"""

from equilibria.zoo.graph.data.graph import NONE, Graph, join_graphs, normalize_features
from equilibria.zoo.graph.data.sets import GraphSet, NodeSet
from equilibria.zoo.graph.data.synthetic import chains
from equilibria.zoo.graph.data.user import load_graphs, load_nodes

__all__ = [
    "NONE",
    "Graph",
    "GraphSet",
    "NodeSet",
    "chains",
    "join_graphs",
    "load_graphs",
    "load_nodes",
    "normalize_features",
]
