"""Tests of the applications, a folder each."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="module")
def _swift(unflushed):
    """No power is lost, so nothing is flushed to disk."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where damaged files are put."""
    return tmp_path_factory.mktemp("mutated")
