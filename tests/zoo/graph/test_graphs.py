"""Graphs as tensors: what is refused, batches of several, and chains."""

import pytest
import torch

from equilibria.run import data
from equilibria.zoo.graph.data import Graph, NodeSet, chains, join_graphs, normalize_features
from equilibria.zoo.graph.data.graph import Joined, add_reverse

X = torch.eye(3)
PATH = torch.tensor([[0, 1], [1, 2]])
"""0 -> 1 -> 2."""


def test_a_graph_may_have_nodes_without_edges():
    graph = Graph(X, torch.empty(2, 0, dtype=torch.int64), y=torch.tensor([0, -1, 1]))
    assert (graph.nodes, graph.edges, graph.directed) == (3, 0, False)
    assert Graph(X, PATH).directed and not Graph(X, add_reverse(PATH, 3)).directed
    both, weight = add_reverse(PATH, 3), torch.tensor([1.0, 2.0, 1.0, 1.0])
    assert Graph(X, both, weight).directed


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"x": torch.empty(0, 3)}, ValueError, r"x has the shape \(0, 3\)"),
        ({"x": torch.zeros(3, dtype=torch.int64)}, ValueError, r"expected \(nodes, features\)"),
        ({"x": torch.eye(3).long()}, TypeError, "x is torch.int64: expected floating"),
        ({"x": X.log()}, ValueError, "feature of node 0 that is not finite"),
        ({"edge_index": PATH.float()}, TypeError, r"edge_index is torch\.float32: expected int64"),
        ({"edge_index": PATH.repeat(1, 2).T}, ValueError, r"\(4, 2\).*transpose it"),
        ({"edge_index": PATH[0]}, ValueError, r"\(2,\): expected \(2, edges\)"),
        ({"edge_index": PATH + 1}, ValueError, "edge 1 joins nodes 2 and 3: there are 3 nodes"),
        ({"edge_index": PATH - 1}, ValueError, "edge 0 joins nodes -1 and 0"),
        ({"edge_weight": torch.tensor([1, 2])}, TypeError, "edge_weight is torch.int64"),
        ({"edge_weight": torch.ones(3)}, ValueError, r"edge_weight has the shape \(3,\)"),
        ({"edge_weight": torch.tensor([1.0, -1.0])}, ValueError, "edge 1 has the weight -1"),
        ({"edge_weight": torch.tensor([torch.nan, 1.0])}, ValueError, "edge 0 has the weight nan"),
        ({"y": torch.tensor([0, 1, -2])}, ValueError, "y has the class -2"),
        ({"y": torch.tensor(-1)}, ValueError, "y has the class -1"),
        ({"y": torch.tensor([0.0, 1, 2])}, TypeError, r"y is torch\.float32"),
        ({"y": torch.tensor([0, 1])}, ValueError, r"y has the shape \(2,\)"),
        ({"y": torch.ones(2, 2)}, ValueError, r"expected \(3, labels\)"),
        ({"masks": {"train": torch.ones(3).bool()}}, ValueError, "no y of each node"),
    ],
)
def test_bad_input_is_named(changes, error, match):
    with pytest.raises(error, match=match):
        Graph(**{"x": X, "edge_index": PATH, **changes})


def test_a_node_in_a_mask_has_a_class():
    y, mask = torch.tensor([0, -1, 1]), torch.tensor([True, False, True])
    graph = Graph(X, PATH, y=y, masks={"train": mask})
    assert graph.targets("train").tolist() == [0, -1, 1]
    with pytest.raises(ValueError, match="node 1 is in the train mask and its class is -1"):
        Graph(X, PATH, y=y, masks={"train": ~mask})
    with pytest.raises(ValueError, match="no mask 'test'; there are: train"):
        graph.targets("test")
    for wrong in ({"train": mask.long()}, {"train": mask[:2]}, {"training": mask}):
        with pytest.raises(ValueError, match="one entry a node, called train, valid or test"):
            Graph(X, PATH, y=y, masks=wrong)


def test_features_add_up_to_one_and_zeros_stay():
    x = torch.tensor([[1.0, 3.0], [0.0, 0.0], [2.0, 0.0]])
    assert normalize_features(Graph(x, PATH)).x.tolist() == [[0.25, 0.75], [0.0, 0.0], [1.0, 0.0]]
    with pytest.raises(ValueError, match="negative"):
        normalize_features(Graph(-x, PATH))


def test_graphs_side_by_side_keep_their_edges():
    one = Graph(X, PATH, y=torch.tensor(1))
    two = Graph(2 * X[:2], torch.tensor([[1], [0]]), torch.tensor([0.5]), torch.tensor(0))
    x, edge_index, weight, batch = join_graphs([one, two, one])
    assert x.shape == (8, 3)
    assert edge_index.tolist() == [[0, 1, 4, 5, 6], [1, 2, 3, 6, 7]]
    assert weight is not None and weight.tolist() == [1, 1, 0.5, 1, 1]
    assert batch is not None and batch.tolist() == [0, 0, 0, 1, 1, 2, 2, 2]
    assert join_graphs([one])[2:] == (None, None)
    inputs, targets = Joined((one, two), "train")[torch.tensor([1, 0])]
    assert inputs[0].shape == (5, 3) and targets.tolist() == [0, 1]
    with pytest.raises(ValueError, match="graphs have 2, 3 features"):
        join_graphs([one, Graph(X[:, :2], PATH)])


# --- chains --------------------------------------------------------------------------------------


def test_only_the_first_node_of_a_chain_knows_its_class():
    graph = chains(10, classes=3, chains=4, features=5)
    assert (graph.nodes, graph.edges, graph.directed) == (120, 3 * 4 * 9, True)
    first = torch.arange(120) % 10 == 0
    assert graph.y is not None and graph.masks is not None
    assert torch.equal(graph.x[first].argmax(1), graph.y[first])
    assert not graph.x[~first].any() and bool((graph.x.sum(1) == first).all())
    sender, receiver = graph.edge_index
    assert bool((receiver == sender + 1).all()) and not bool((receiver % 10 == 0).any())
    assert [int(mask.sum()) for mask in graph.masks.values()] == [6, 12, 102]
    assert bool((sum(mask.long() for mask in graph.masks.values()) == 1).all())


def test_chains_of_a_seed_are_the_same_and_both_ways_if_add_reverse():
    one, same, other = (chains(20, seed=seed, directed=False) for seed in (0, 0, 1))
    assert one.masks is not None and same.masks is not None and other.masks is not None
    assert torch.equal(one.masks["train"], same.masks["train"])
    assert not torch.equal(one.masks["train"], other.masks["train"])
    assert one.edges == 2 * 40 * 19 and not one.directed
    noisy = chains(20, noise=0.1)
    assert 0.05 < float(noisy.x[1].abs().max()) < 0.1


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"length": 1}, "length must be at least 2; got 1"),
        ({"classes": 1}, "classes must be at least 2"),
        ({"chains": 0}, "chains must be at least 1; got 0"),
        ({"features": 1}, "2 classes need one each"),
        ({"noise": -1.0}, "noise must not be negative; got -1.0"),
        ({"length": 2, "chains": 1}, "at least one node"),
    ],
)
def test_impossible_chains_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        chains(**{"length": 10, **options})


def test_chains_are_a_data_set_by_name():
    found = data.load("chains", length=10, directed=False, seed=3)
    assert isinstance(found, NodeSet) and found.title == "undirected chains of length 10, 2 classes"
    assert found.checksum == data.load("chains", length=10, directed=False, seed=3).checksum
    assert found.checksum != data.load("chains", length=10, directed=False, seed=4).checksum
