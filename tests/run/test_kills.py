"""Killed anywhere, on a full disk, with a flipped bit or twice at once: nothing is lost.

A few of each; `python tests/helpers/killing.py` does as many as one likes.
"""

import pytest

import killing
from several import ended


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("random", "--kills", "8"),
        ("events", "--every", "3"),
        ("full", "--every", "3"),
        ("flips", "--flips", "40"),
        ("pairs", "--pairs", "1"),
        ("shares", "--kills", "4"),
    ],
    ids=lambda words: words[0],
)
def test_nothing_is_lost(words):
    assert ended(killing.main, words) == 0
