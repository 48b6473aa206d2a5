"""Checks of numbers that users give."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["check_fields", "check_within"]

_WORDS = {"(0, inf)": "be positive", "[0, inf)": "not be negative", "[1, inf)": "be at least 1"}

Given = float | Sequence[float] | None


def check_within(interval: str, **values: Given) -> None:
    """Raise ValueError for the first value outside an interval, such as "[0, 1)" or "(0, inf)".

    Of a sequence each number must lie in it, and there must be one; None stands for a default.
    """
    low, high = map(float, interval[1:-1].split(","))
    for name, value in values.items():
        numbers = value if isinstance(value, Sequence) else () if value is None else (value,)
        inside = all(
            (low < each or (low == each and interval[0] == "["))
            and (each < high or (each == high and interval[-1] == "]" and high < math.inf))
            for each in numbers
        )
        if not inside or (isinstance(value, Sequence) and not value):
            must = _WORDS.get(interval, f"lie in {interval}")
            raise ValueError(f"{name} must {must}; got {value}")


def check_fields(owner: object, interval: str, *names: str) -> None:
    """`check_within` of attributes."""
    check_within(interval, **{name: getattr(owner, name) for name in names})
