"""Damaged flow: read as a reference reads them, or refused with a DataError."""

from __future__ import annotations

import pytest
from hypothesis import given
from mutations import FUZZ, bounded, mutated, put
from test_unlike_flow import RIGHT

from equilibria.run.data import DataError
from equilibria.zoo.flow.data.formats import read_flow


@FUZZ
@given(content=mutated(*RIGHT.values()))
@pytest.mark.parametrize("ending", [".flo", ".pfm", ".png", ".flo.xz"])
def test_flows(root, ending, content):
    path = put(root / f"a{ending}", content)
    with bounded(len(content)):
        try:
            found = read_flow(path)
        except DataError as error:
            assert str(path) in str(error)
            return
    assert found.flow[:, found.valid].isfinite().all()
