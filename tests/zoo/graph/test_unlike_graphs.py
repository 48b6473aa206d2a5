"""Graphs of unlike makes and damaged ones: read right, or refused by name."""

import itertools
import warnings
import zipfile
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from mutations import FUZZ, bounded, mutated, put

from equilibria.run.data import DataError
from equilibria.zoo.graph.data import load_graphs, load_nodes
from packed import PARTS, flipped, zipped

CHANGES: dict[str, Callable[[str], str]] = {
    "as they are": lambda text: text,
    "a mark": lambda text: "\ufeff" + text,
    "carriage returns": lambda text: text.replace("\n", "\r\n"),
    "no last newline": lambda text: text.rstrip(),
    "empty lines after": lambda text: text + "\n\n",
    "no spaces": lambda text: text.replace(" ", ""),
    "wide spaces": lambda text: text.replace(" ", "   "),
    "floats": lambda text: "".join(f"{each}.0" if each.isdigit() else each for each in text),
    "a mark and returns": lambda text: "\ufeff" + text.replace("\n", "\r\n"),
    "floats with a mark": lambda text: "\ufeff" + text.replace("1\n", "1.00\n"),
}


ODD = {
    "a half": (lambda text: text.replace("1\n", "1.5\n", 1), "expected whole numbers"),
    "a word": (lambda text: text.replace("1", "one", 1), "is damaged or the wrong file"),
    "nothing": (lambda text: "", "it is empty"),
    "infinite": (lambda text: text.replace("1", "inf", 1), "expected finite numbers"),
    "one line less": (lambda text: text[: text.rstrip().rfind("\n") + 1], None),
    "a column more": (lambda text: text.replace("\n", ", 1\n", 1), None),
}


@pytest.mark.parametrize(("part", "change"), list(itertools.product([*PARTS, "all"], CHANGES)))
def test_every_make_of_graph(tmp_path, part, change):
    for name, content in PARTS.items():
        changed = CHANGES[change](content) if part in (name, "all") else content
        (tmp_path / f"X_{name}.txt").write_bytes(changed.encode())
    first, second = load_graphs(tmp_path).graphs
    assert first.edge_index.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert first.x.tolist() == [[1, 0, 0], [0, 0, 1], [1, 0, 0]]
    assert second.x.tolist() == [[0, 1, 0], [1, 0, 0]] and (first.y, second.y) == (0, 1)


@pytest.mark.parametrize(("part", "odd"), list(itertools.product(PARTS, ODD)))
def test_graphs_that_do_not_fit(tmp_path, part, odd):
    change, message = ODD[odd]
    for name, content in PARTS.items():
        changed = change(content) if part == name else content
        (tmp_path / f"X_{name}.txt").write_bytes(changed.encode())
    try:
        found = load_graphs(tmp_path)
    except DataError as error:
        assert str(tmp_path) in str(error)
        assert message is None or message in str(error)
    else:
        assert (part, odd) == ("A", "one line less") and found.graphs[1].edges == 1


def test_edges_are_repeated_or_lead_back(tmp_path):
    for name, content in PARTS.items():
        (tmp_path / f"X_{name}.txt").write_text(content + "1, 1\n1, 2\n" * (name == "A"))
    with pytest.warns(UserWarning, match="X_A.txt in .* has 2 edges that are repeated or join"):
        assert load_graphs(tmp_path).graphs[0].edges == 4
    edges = np.array([[0, 1, 1, 2], [1, 0, 0, 2]])
    arrays = {"x": np.ones((6, 2)), "edge_index": edges, "y": np.arange(6) % 2.0}
    np.savez(tmp_path / "a.npz", **arrays, edge_weight=np.array([1, 1, 1, 0.5]))
    with (
        pytest.warns(UserWarning, match="1 edges that are repeated: .* add up"),
        pytest.warns(UserWarning, match="1 edges from a node to itself, one with the weight 0.5"),
    ):
        assert load_nodes(tmp_path / "a.npz").train[0].y.dtype == torch.int64


def test_features_that_float32_cannot_tell_apart(tmp_path):
    x = 1.7e9 + np.arange(6.0)[:, None]
    edges = np.zeros((2, 0), np.int64)
    np.savez(tmp_path / "a.npz", x=x, edge_index=edges, y=np.arange(6) % 2)
    with pytest.warns(UserWarning, match="column 0 of x in .* than float32 can tell"):
        load_nodes(tmp_path / "a.npz")


def encrypted():
    content = bytearray(zipped())
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        place = -1
        while (place := content.find(signature, place + 1)) >= 0:
            content[place + flags] |= 1
    return bytes(content)


ZIPS: dict[str, tuple[Callable[[], bytes], str | None]] = {
    "stored": (lambda: zipped(zipfile.ZIP_STORED), None),
    "deflated": (zipped, None),
    "bzip2": (lambda: zipped(zipfile.ZIP_BZIP2), None),
    "lzma": (lambda: zipped(zipfile.ZIP_LZMA), None),
    "without a folder": (lambda: zipped(folder=""), None),
    "another folder": (lambda: zipped(folder="mine/"), "has no MUTAG_A.txt"),
    "encrypted": (encrypted, "is encrypted: pack it anew"),
    "two of one name": (lambda: zipped(twice="A"), "has two members called MUTAG/MUTAG_A.txt"),
    "cut": (lambda: zipped()[:-30], "is damaged"),
    "a bit": (lambda: flipped(zipped(zipfile.ZIP_STORED), 50), "is damaged"),
    "nothing": (lambda: b"", "is damaged"),
    "a page": (lambda: b"<html>", "is damaged"),
}


@pytest.mark.parametrize("make", ZIPS)
def test_every_make_of_zip(tmp_path, cache, make):
    from equilibria.run import data

    content, message = ZIPS[make]
    (tmp_path / "MUTAG.zip").write_bytes(content())
    if message is None:
        assert len(data.load("mutag", tmp_path, download=False).graphs) == 2
    else:
        with pytest.raises(DataError, match=message):
            data.load("mutag", tmp_path, download=False)


# --- damaged --------------------------------------------------------------------------------------


@FUZZ
@given(content=mutated(*(each.encode() for each in PARTS.values())))
@pytest.mark.parametrize("part", PARTS)
def test_graphs(root, part, content):
    for name, each in PARTS.items():
        put(root / f"X_{name}.txt", content if name == part else each.encode())
    with bounded(len(content)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            graphs = load_graphs(root).graphs
        except DataError as error:
            assert str(root) in str(error)
            return
    assert sum(graph.nodes for graph in graphs) > 0
