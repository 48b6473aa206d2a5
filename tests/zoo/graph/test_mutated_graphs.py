"""Damaged graphs: read as a reference reads them, or refused with a DataError."""

import warnings

import pytest
from hypothesis import given
from mutations import FUZZ, bounded, mutated, put

from equilibria.run.data import DataError
from equilibria.zoo.graph.data import load_graphs
from packed import PARTS


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
