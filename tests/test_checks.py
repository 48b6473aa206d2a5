"""Numbers that users give."""

import re

import pytest

from equilibria.checks import check_within


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("(0, inf)", [1e-300, 5, (1, 2)], [0, -1, float("inf"), float("nan"), (1, 0), ()]),
        ("[0, inf)", [0, 3.5], [-1e-9, float("inf")]),
        ("[1, inf)", [1, (1, 4)], [0, 0.5]),
        ("[0, 1)", [0.0, 0.999], [1.0, -0.1]),
        ("(0, 1]", [1.0], [0.0, 1.1]),
    ],
)
def test_intervals(interval, inside, outside):
    check_within(interval, width=None)
    for value in inside:
        check_within(interval, width=value)
    for value in outside:
        with pytest.raises(ValueError, match=rf"width must .*; got {re.escape(str(value))}"):
            check_within(interval, width=value)


def test_what_is_allowed_is_said():
    with pytest.raises(ValueError, match=r"^depth must be at least 1; got 0$"):
        check_within("[1, inf)", width=4, depth=0)
    with pytest.raises(ValueError, match=r"^share must lie in \[0, 1\); got 1$"):
        check_within("[0, 1)", share=1)
