"""Words and numbers of messages."""

import math

import pytest

from equilibria.words import list_some, others, percent, plural, printable


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0, "0 %"),
        (5e-6, "< 0.001 %"),
        (0.000125, "0.0125 %"),
        (0.12345, "12.3 %"),
        (0.999, "99.9 %"),
        (0.9996, "> 99.9 %"),
        (1, "100 %"),
        (3.13, "313 %"),
        (12.5, "1,250 %"),
        (math.nan, "–"),
    ],
)
def test_a_share_is_nothing_or_all_only_where_it_is(share, text):
    assert percent(share) == text


def test_numbers_of_things():
    assert [plural(n, "sample") for n in (0, 1, 2000)] == ["0 samples", "1 sample", "2,000 samples"]
    assert [list_some(list("abc"), most) for most in (3, 2)] == ["a, b, c", "a, b and 1 more"]
    assert list_some([], 2) == ""
    assert ["a" + others(list(names)) for names in ("a", "abc")] == ["a", "a (and 2 more)"]


def test_control_characters_are_shown_and_not_obeyed():
    assert printable("a\x1b[31m\x07\x9b\r\x7f") == r"a\x1b[31m\x07\x9b\x0d\x7f"
    assert printable("one\ntwo") == r"one\ntwo" and printable("one\ntwo", lines=True) == "one\ntwo"
    assert printable("caf\udce9 \u202e") == r"caf\xe9 \u202e"
    assert printable("naïve 日本語\t🙂") == "naïve 日本語\t🙂"
