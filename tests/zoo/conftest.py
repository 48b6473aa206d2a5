"""Tests of the applications, a folder each."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="module")
def _swift(unflushed):
    """No power is lost, so nothing is flushed to disk."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where damaged files are put."""
    return tmp_path_factory.mktemp("mutated")


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How many bytes gzip has unpacked since the test began."""
    original, count = gzip.GzipFile.read, [0]

    def read(self: gzip.GzipFile, size: int | None = -1) -> bytes:
        block = original(self, size)
        count[0] += len(block)
        return block

    monkeypatch.setattr(gzip.GzipFile, "read", read)
    return lambda: count[0]
