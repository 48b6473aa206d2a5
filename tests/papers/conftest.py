"""Tests of the papers' studies, on tiny recipes."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def _swift(few_digits):
    """Git is asked once, and digits are few."""
