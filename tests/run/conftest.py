"""Tests of the frame: runs on small recipes."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _swift(unflushed):
    """No power is lost, so nothing is flushed to disk."""
