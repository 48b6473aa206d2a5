"""Planetoid's files: pickles of which nothing is run, the public split, nodes without a line."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from equilibria.run import data
from equilibria.run.data import DataError
from equilibria.zoo.graph.data import pickles
from equilibria.zoo.graph.data.graph import Graph
from equilibria.zoo.graph.data.sets import NodeSet


def four(number):
    return b"J" + number.to_bytes(4, "little")


def text(value):
    return b"U" + bytes([len(value)]) + value.encode()


def array(values, kind):
    """An array as Python 2 pickled it, its bytes as a string."""
    raw = values.astype(f"<{kind}").tobytes()
    return (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01("
        + b"".join(map(four, values.shape))
        + b"tcnumpy\ndtype\n"
        + text(kind)
        + b"K\x00K\x01\x87R(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89T"
        + len(raw).to_bytes(4, "little")
        + raw
        + b"tb"
    )


def compressed(dense):
    """A sparse matrix as Python 2 pickled it."""
    rows, columns = np.nonzero(dense)
    counts = np.bincount(rows, minlength=len(dense))
    parts = (
        text("indptr") + array(np.concatenate([[0], counts.cumsum()]), "i4"),
        text("indices") + array(columns, "i4"),
        text("data") + array(dense[rows, columns], "f4"),
        text("_shape") + four(dense.shape[0]) + four(dense.shape[1]) + b"\x86",
    )
    return b"cscipy.sparse.csr\ncsr_matrix\n)\x81}(" + b"".join(parts) + b"ub"


def lists(rows):
    items = (four(key) + b"](" + b"".join(map(four, row)) + b"e" for key, row in rows.items())
    return b"ccollections\ndefaultdict\nc__builtin__\nlist\n\x85R(" + b"".join(items) + b"u"


def written(path, content):
    path.write_bytes(b"\x80\x02" + content + b".")
    return path


@pytest.fixture
def citeseer(tmp_path, cache):
    """Eight files: 2 nodes train, 500 follow, 3 test; 503 is on no line, and nobody cites it."""
    allx, ally = np.eye(502, 4), np.eye(6)[np.arange(502) % 6]
    tx, ty = np.array([[0, 0, 0, 5], [0, 2, 0, 0], [0, 0, 0, 0]]), np.eye(6)[[3, 1, 2]]
    folder = tmp_path / "planetoid"
    folder.mkdir()
    matrices = {"x": allx[:2], "tx": tx, "allx": allx}
    classes = {"y": ally[:2], "ty": ty, "ally": ally}
    contents = {
        **{part: compressed(each) for part, each in matrices.items()},
        **{part: array(each, "i4") for part, each in classes.items()},
        "graph": lists({0: [1, 1, 505, 0], 1: [0, 2]}),
    }
    for part, content in contents.items():
        written(folder / f"ind.citeseer.{part}", content)
    (folder / "ind.citeseer.test.index").write_text("505\n502\n504\n")
    return folder


def test_test_nodes_have_the_numbers_of_their_lines(citeseer):
    found = data.load("citeseer", citeseer.parent, download=False)
    assert isinstance(found, NodeSet) and found.title == "Citeseer" and len(found.labels) == 6
    graph = found.graph
    assert graph.nodes == 506 and graph.y is not None and graph.masks is not None
    assert graph.x[505].tolist() == [0, 0, 0, 5] and graph.x[502].tolist() == [0, 2, 0, 0]
    assert graph.y[[505, 502, 504, 503]].tolist() == [3, 1, 2, -1]
    assert not graph.x[503].any()
    assert [int(mask.sum()) for mask in graph.masks.values()] == [2, 500, 3]
    assert torch.nonzero(graph.masks["test"])[:, 0].tolist() == [502, 504, 505]
    # Both ways, each once, none from a node to itself.
    assert graph.edge_index.T.tolist() == [[0, 1], [0, 505], [1, 0], [1, 2], [2, 1], [505, 0]]


def test_arrays_are_read_where_there_are_no_pickles(citeseer):
    pickled = data.load("citeseer", citeseer.parent, download=False)
    graph: Graph = pickled.graph
    assert graph.y is not None and graph.masks is not None
    rows, columns = np.nonzero(graph.x.numpy())
    np.savez(
        citeseer.parent / "citeseer.npz",
        indptr=np.concatenate([[0], np.bincount(rows, minlength=506).cumsum()]),
        indices=columns,
        data=graph.x.numpy()[rows, columns],
        shape=graph.x.shape,
        labels=graph.y.numpy(),
        edges=np.array([[0, 1], [0, 505], [1, 2]]),
        **{
            name: np.flatnonzero(graph.masks[part])
            for name, part in (("train", "train"), ("val", "valid"), ("test", "test"))
        },
    )
    for path in citeseer.iterdir():
        path.unlink()
    found = data.load("citeseer", citeseer.parent, download=False)
    assert found.checksum == pickled.checksum
    np.savez(citeseer.parent / "citeseer.npz", labels=np.arange(3))
    with pytest.raises(DataError, match=r"citeseer\.npz has no array indptr"):
        data.load("citeseer", citeseer.parent, download=False)


@pytest.mark.parametrize(
    ("part", "content", "match"),
    [
        ("graph", lists({0: [506]}), "edge 0 joins nodes 0 and 506: there are 506 nodes"),
        ("ty", array(np.eye(6)[[1]], "i4"), "do not fit together"),
        ("tx", compressed(np.ones((2, 4))), "do not fit together"),
        ("x", compressed(np.ones((3, 4))), "do not fit together"),
        ("y", lists({}), "do not fit together"),
        ("allx", array(np.ones((2, 2)), "i4")[:-9], r"ind\.citeseer\.allx is damaged"),
    ],
)
def test_damage_is_named(citeseer, part, content, match):
    written(citeseer / f"ind.citeseer.{part}", content)
    with pytest.raises(DataError, match=match):
        data.load("citeseer", citeseer.parent, download=False)


class Evil:
    """Would leave a file if it were restored."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_that_a_pickle_names_is_run(tmp_path):
    path = tmp_path / "ind.cora.x"
    for protocol in (2, 4):
        path.write_bytes(pickle.dumps(Evil(tmp_path / "evil"), protocol))
        with pytest.raises(DataError, match=r"ind\.cora\.x is damaged or no pickle of arrays"):
            pickles.read(path)
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"cos\nsystem\n", "names os.system"),
        (b"c__builtin__\neval\n", "names __builtin__.eval"),
        (b"(lp0\n", "it has the step LIST"),
        (b"]r\xff\xff\xff\x7f", "numbers more objects than it has bytes"),
        (array(np.ones(3), "i4").replace(four(3), four(1 << 30)), "12 bytes for an array"),
        (array(np.ones(3), "O8".replace("O", "f")).replace(b"f8", b"O8"), "array of 'O8'"),
        (compressed(np.eye(2)).replace(four(2) + four(2), four(2) + four(1)), "do not make a"),
        (b"K\x01", "a int"),
    ],
)
def test_what_is_no_array_is_refused(tmp_path, content, match):
    with pytest.raises(DataError, match=match):
        pickles.read(written(tmp_path / "file", content))


@pytest.mark.data
def test_cora_is_as_published(real):
    if not (real / "planetoid").is_dir():
        pytest.skip("Planetoid is not in EQUILIBRIA_DATA")
    found = data.load("cora", download=False)
    graph = found.graph
    assert (graph.nodes, graph.edges, found.features) == (2_708, 2 * 5_278, 1_433)
    assert int((graph.x != 0).sum()) == 49_216 and not graph.directed
    assert graph.y is not None and graph.masks is not None
    assert [int(mask.sum()) for mask in graph.masks.values()] == [140, 500, 1_000]
    assert graph.y[graph.masks["train"]].bincount().tolist() == [20] * 7
    assert graph.y.bincount().tolist() == [351, 217, 418, 818, 426, 298, 180]
