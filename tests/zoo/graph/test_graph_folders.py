"""Texts of TU Dortmund, the tissues of PPI, and a user's own graphs as texts or arrays."""

import json
import zipfile

import numpy as np
import pytest
import torch

from equilibria.run import data
from equilibria.run.data import DataError
from equilibria.zoo.graph.data import GraphSet, NodeSet, load_graphs, load_nodes, ppi

TEXTS = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n3, 3\n2, 3\n4, 5\n5, 4\n",
    "graph_indicator": "1\n1\n1\n2\n2\n3\n",
    "graph_labels": "-1\n1\n1\n",
    "node_labels": "3\n5\n3\n4\n3\n3\n",
    "node_attributes": " 0.5, -1\n1, 2\n1, 2\n1, 2\n1, 2\n1, 2\n",
}
"""A path of three nodes, one with an edge to itself and one edge twice; an edge; a single node."""


def write(folder, name="MUTAG", **changes):
    folder.mkdir(parents=True, exist_ok=True)
    for part, text in {**TEXTS, **changes}.items():
        if text is not None:
            (folder / f"{name}_{part}.txt").write_text(text)
    return folder


def test_texts_become_graphs(tmp_path, cache):
    write(tmp_path / "tu" / "MUTAG")
    found = data.load("mutag", tmp_path, download=False)
    assert isinstance(found, GraphSet) and found.labels == ("-1", "1")
    assert found.targets.tolist() == [0, 1, 1] and found.title == "MUTAG"
    path, edge, single = found.graphs
    assert path.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert path.x.tolist() == [[1, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert edge.edge_index.tolist() == [[0, 1], [1, 0]] and edge.x.tolist() == [
        [0, 1, 0],
        [1, 0, 0],
    ]
    assert (single.nodes, single.edges) == (1, 0)
    more = data.load("mutag", tmp_path, download=False, attributes=True)
    assert more.graphs[0].x[0].tolist() == [1, 0, 0, 0.5, -1.0]
    assert more.checksum != found.checksum


def test_the_archive_has_the_same_graphs(tmp_path, cache):
    write(tmp_path / "tu" / "MUTAG")
    unpacked = data.load("mutag", tmp_path, download=False)
    with zipfile.ZipFile(tmp_path / "MUTAG.zip", "w") as archive:
        for part, text in TEXTS.items():
            archive.writestr(f"MUTAG/MUTAG_{part}.txt", text)
    for path in (tmp_path / "tu" / "MUTAG").iterdir():
        path.unlink()
    assert data.load("mutag", tmp_path, download=False).checksum == unpacked.checksum


def test_a_folder_of_ones_own(tmp_path):
    found = data.load(str(write(tmp_path / "mine", "own")), kind=GraphSet)
    assert found.title == "mine" and found.features == 5  # three labels and two attributes
    assert data.load(str(tmp_path / "mine"), kind=GraphSet, attributes=False).features == 3
    bare = load_graphs(write(tmp_path / "bare", node_labels=None, node_attributes=None))
    assert bare.graphs[0].x.tolist() == [[1.0]] * 3


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"A": "1, 2\n2, 9\n"}, "edge 2 joins nodes 2 and 9, but there are 6 nodes, counted"),
        ({"A": "0, 1\n"}, "edge 1 joins nodes 0 and 1"),
        ({"A": "1, 4\n"}, "edge 1 joins nodes of two graphs"),
        ({"A": "1.5, 2\n"}, r"MUTAG_A\.txt in .* is damaged"),
        ({"A": "1 2\n"}, "line 1 has 1 columns, expected 2"),
        ({"A": "1, 2\n3\n"}, "line 2 has 1 columns, expected 2"),
        ({"A": "1, 2\n2, 1, 3\n4\n"}, "line 2 has 3 columns, expected 2"),
        ({"graph_indicator": "0\n1\n1\n2\n2\n3\n"}, "line 1: graph 0; count from 1"),
        ({"graph_indicator": "1\n2\n1\n2\n3\n3\n"}, "line 3: the graphs of nodes do not ascend"),
        ({"graph_indicator": "1\n1\n1\n3\n3\n3\n"}, "graph 2 has no node"),
        ({"graph_labels": "1\n1\n1\n"}, "graph_labels.txt in .* has a single class"),
        ({"graph_labels": "1\n-1\n"}, "a graph 3, but there are labels of 2 graphs"),
        ({"graph_labels": None}, r"has no MUTAG_graph_labels\.txt"),
        ({"node_labels": "1\n2\n"}, r"6 nodes in .* and 2 in MUTAG_node_labels\.txt"),
        ({"node_labels": "1\n99999\n" * 3}, "too many for a column each"),
        ({"node_attributes": "nan\n" * 6}, r"line 1 has \[nan\]: expected finite numbers"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, changes, match):
    with pytest.raises(DataError, match=match):
        load_graphs(write(tmp_path / "MUTAG", **changes))


def test_attributes_that_are_not_there(tmp_path):
    folder = write(tmp_path / "MUTAG", node_attributes=None)
    with pytest.raises(DataError, match=r"no MUTAG_node_attributes\.txt: set task.attributes"):
        load_graphs(folder, attributes=True)
    with pytest.raises(DataError, match="has files of MUTAG, other: expected the text files of"):
        load_graphs(write(folder, "other"))
    with pytest.raises(DataError, match=r"no file NAME_A\.txt"):
        load_graphs(tmp_path)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "graphs", "nodes", "edges", "features", "classes"),
    [
        ("cox2", 467, 19_252, 40_578, 35, [365, 102]),
        ("proteins", 1_113, 43_471, 162_088, 3, [663, 450]),
        ("mutag", 188, 3_371, 7_442, 7, [63, 125]),
    ],
)
def test_published_sets_have_their_sizes(real, name, graphs, nodes, edges, features, classes):
    if not (real / "tu").is_dir():
        pytest.skip("the sets of TU Dortmund are not in EQUILIBRIA_DATA")
    found = data.load(name, download=False)
    assert (len(found), found.features) == (graphs, features)
    assert sum(graph.nodes for graph in found.graphs) == nodes
    assert sum(graph.edges for graph in found.graphs) == edges
    assert not any(graph.directed for graph in found.graphs)
    assert found.targets.bincount().tolist() == classes


# --- arrays of one's own -------------------------------------------------------------------------


def arrays(**changes):
    """Ten nodes on a ring, whose classes alternate."""
    there = np.arange(10)
    base = {"x": np.eye(10), "edge_index": np.stack([there, (there + 1) % 10]), "y": there % 2}
    return {name: each for name, each in {**base, **changes}.items() if each is not None}


def saved(tmp_path, **changes):
    np.savez(path := tmp_path / "mine.npz", **arrays(**changes))
    return path


def test_one_graph_of_ones_own(tmp_path):
    path = saved(tmp_path, edge_weight=np.linspace(0, 1, 10))
    found = data.load(str(path), kind=NodeSet)
    graph = found.graph
    assert (graph.nodes, graph.edges, found.labels, found.title) == (10, 10, ("0", "1"), "mine")
    assert graph.edge_weight is not None and graph.edge_weight.dtype == torch.float32
    assert graph.masks is not None and graph.y is not None
    for name, count in (("train", 3), ("valid", 1), ("test", 1)):
        assert graph.y[graph.masks[name]].bincount().tolist() == [count, count]
    assert load_nodes(path).checksum == found.checksum
    whole = load_nodes(path, whole=True)
    assert not whole.train and whole.test[0].masks is not None
    assert int(whole.test[0].masks["test"].sum()) == 10


def test_masks_of_ones_own_may_leave_nodes_out(tmp_path):
    train, test = np.arange(10) < 4, np.arange(10) > 6
    path = saved(tmp_path, y=np.where(train | test, np.arange(10) % 2, -1), train=train, test=test)
    found = load_nodes(path)
    assert not found.valid and found.graph.targets("train").tolist() == [0, 1, 0, 1] + [-1] * 6


def test_several_labels_of_a_node(tmp_path):
    found = load_nodes(saved(tmp_path, y=np.eye(10)[:, :3]))
    assert found.multilabel and found.labels == ("0", "1", "2")
    assert found.graph.y is not None and found.graph.y.dtype == torch.float32


TEN = np.ones(10, bool)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"edge_index": np.full((2, 3), 0.5)}, "edge_index in .* array of float64: expected whole"),
        ({"edge_index": np.zeros((3, 2), int)}, r"\(3, 2\): expected \(2, edges\).*transpose"),
        ({"edge_index": np.full((2, 1), 10)}, "edge 0 joins nodes 10 and 10: there are 10 nodes"),
        ({"edge_weight": -np.ones(10)}, "edge 0 has the weight -1"),
        ({"edge_weight": np.full(10, np.nan)}, r"edge_weight in .* has nan at \[0\]"),
        ({"x": np.full((10, 2), np.inf)}, r"x in .* has inf at \[0, 0\]"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, r"x has the shape \(0, 2\)"),
        ({"y": np.arange(10) - 1}, "node 0 has the class -1 in y"),
        ({"y": np.full(10, np.nan)}, "y in .* array of float64"),
        ({"y": np.zeros(10, int)}, "a single class"),
        ({"y": np.arange(10)}, "too few nodes of class 0 for train, valid and test, 1"),
        ({"y": None}, r"has the arrays x, edge_index: expected FILE\.npz"),
        ({"colour": TEN}, "edge_index, y, colour: expected"),
        ({"train": TEN}, "has the mask train: expected train and test"),
        ({"train": TEN, "test": ~TEN}, "no node is in the mask test"),
        ({"train": TEN, "test": TEN}, "node 0 is in the masks train and test"),
        ({"y": np.arange(10) % 2 * 5}, "y has the class 5, but no node of class 1"),
        ({"y": 2 * np.eye(10)}, "y has the value 2: expected 1 for a label"),
        ({"train": TEN.astype(int), "test": TEN}, "train in .* array of int64: expected a bool"),
        ({"train": TEN[:4], "test": TEN}, r"the mask 'train' has the shape \(4,\)"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path, changes, match):
    with pytest.raises(DataError, match=match):
        load_nodes(saved(tmp_path, **changes))


def test_many_graphs_in_one_file(tmp_path):
    owner = np.array([0, 0, 1, 1, 1, 2])
    edges = np.array([[2, 0, 3], [3, 1, 4]])
    many = {"x": np.eye(6), "edge_index": edges, "batch": owner, "y": np.array([0, 1, 1])}
    np.savez(path := tmp_path / "many.npz", **many, edge_weight=np.array([1.0, 2.0, 3.0]))
    one, two, three = load_graphs(path).graphs
    assert one.edge_index.tolist() == [[0], [1]]
    assert two.edge_index.tolist() == [[0, 1], [1, 2]] and (three.nodes, three.edges) == (1, 0)
    assert one.edge_weight is not None and one.edge_weight.tolist() == [2.0]
    for changes, match in (
        ({"batch": owner[::-1]}, "batch is not sorted: node 1 is of graph 1 .* before of graph 2"),
        ({"batch": owner * 2}, "batch: graph 1 has no node"),
        ({"batch": owner[:3]}, r"batch has the shape \(3,\)"),
        ({"edge_index": edges * 0 + [[0], [5]]}, "node 0 of graph 0 and node 5 of graph 2"),
        ({"y": np.eye(3)}, r"y in .* has the shape \(3, 3\)"),
        ({"y": np.array([0, 1, -1])}, "y has the class -1"),
    ):
        np.savez(path, **{**many, **changes})
        with pytest.raises(DataError, match=match):
            load_graphs(path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match=r"no file or folder .*nowhere.npz; expected FILE\.npz"):
        data.load(str(tmp_path / "nowhere.npz"), kind=NodeSet)
    with pytest.raises(DataError, match="is a folder: expected FILE"):
        load_nodes(tmp_path)
    with pytest.raises(DataError, match=r"there is no file .* with arrays"):
        load_graphs(tmp_path / "nowhere.npz")
    with pytest.raises(ValueError, match=r"'core'.*did you mean 'cora'"):
        data.load("core", kind=NodeSet)


# --- PPI -----------------------------------------------------------------------------------------


def tissues(folder, **changes):
    """Tissues of two proteins each, joined to each other."""
    for split, count in ppi.GRAPHS.items():
        nodes = 2 * count
        links = [{"source": k, "target": k + 1} for k in range(0, nodes, 2)]
        files = {
            "feats": np.full((nodes, ppi.FEATURES), 0.5),
            "labels": np.eye(nodes, ppi.LABELS),
            "graph_id": np.arange(nodes) // 2,
            **changes,
        }
        for part, array in files.items():
            np.save(folder / f"{split}_{part}.npy", array)
        (folder / f"{split}_graph.json").write_text(json.dumps({"links": links}))


def test_tissues_are_graphs_whose_proteins_have_functions(tmp_path, cache):
    folder = tmp_path / "ppi"
    folder.mkdir()
    tissues(folder)
    found = data.load("ppi", tmp_path, download=False)
    assert isinstance(found, NodeSet) and found.multilabel
    assert [len(part) for part in (found.train, found.valid, found.test)] == [20, 2, 2]
    assert (found.features, len(found.labels)) == (50, 121)
    assert found.train[3].edge_index.tolist() == [[0, 1], [1, 0]]
    second = found.train[3].y
    assert second is not None and second.argmax(1).tolist() == [6, 7]
    with pytest.raises(ValueError, match="PPI has several graphs"):
        _ = found.graph
    with zipfile.ZipFile(tmp_path / "ppi.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"ppi/{path.name}")
            path.unlink()
    assert data.load("ppi", tmp_path, download=False).checksum == found.checksum
    with zipfile.ZipFile(tmp_path / "ppi.zip", "w") as archive:
        archive.writestr("train_graph.json", "{}")
    with pytest.raises(DataError, match="the train part is damaged"):
        data.load("ppi", tmp_path, download=False)


def test_other_tissues_are_refused(tmp_path, cache):
    (tmp_path / "ppi").mkdir()
    for changes, match in (
        ({"graph_id": np.zeros(40)}, r"arrays of shapes|tissues, expected 20"),
        ({"feats": np.zeros((40, 49))}, r"\(40, 49\)"),
        ({"labels": np.array([{}] * 40)}, "damaged"),
    ):
        tissues(tmp_path / "ppi", **changes)
        with pytest.raises(DataError, match=match):
            data.load("ppi", tmp_path, download=False)
