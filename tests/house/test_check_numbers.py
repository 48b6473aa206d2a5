"""Numbers that users give."""

import re
from dataclasses import dataclass

import pytest

from equilibria.checks import check_fields, check_within


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("(0, inf)", [1e-300, 5, (1, 2)], [0, -1, float("inf"), float("nan"), (1, 0), (), "a"]),
        ("(0, inf]", [5, float("inf")], [0, float("nan")]),
        ("[0, inf)", [0, 3.5], [-1e-9, float("inf"), None]),
        ("[1, inf)", [1, (1, 4)], [0, 0.5]),
        ("[0, 1)", [0.0, 0.999], [1.0, -0.1, True]),
        ("(0, 1]", [1.0], [0.0, 1.1]),
    ],
)
def test_intervals(interval, inside, outside):
    for value in inside:
        check_within(interval, width=value)
    for value in outside:
        with pytest.raises(ValueError, match=rf"width must .*; got {re.escape(str(value))}"):
            check_within(interval, width=value)


@dataclass
class Config:
    width: int = 4
    depth: int | None = None
    widths: tuple[int, ...] = (1, 2)
    rate: float = 0.1
    clip: float | None = None


def check(**changes):
    config = Config(**changes)
    check_fields(config, "(0, inf)", "width", "depth", "widths")
    check_fields(config, "(0, inf]", "rate", "clip")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("width", 0.5, "width must be positive, a whole number; got 0.5"),
        ("width", None, "width must be positive, a whole number; got None"),
        ("depth", 0, "depth must be positive, or be null; got 0"),
        ("widths", (1, 0.5), "widths must be positive, a whole number; got (1, 0.5)"),
        ("rate", None, "rate must be positive; got None"),
        ("clip", 0.0, "clip must be positive, or be null; got 0.0"),
        ("width", float("inf"), "width must be positive, a whole number; got inf"),
    ],
)
def test_fields_by_their_types(name, value, said):
    check()
    check(clip=float("inf"), depth=3)
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        check(**{name: value})


def test_an_infinity_is_told_from_a_negative_number():
    with pytest.raises(ValueError, match=r"^lr must be positive and finite; got inf$"):
        check_within("(0, inf)", lr=float("inf"))
