"""Checks of numbers that users give."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Sequence
from typing import Any

__all__ = ["check_fields", "check_within"]

_WORDS = {
    "(0, inf)": "be positive",
    "(0, inf]": "be positive",
    "[0, inf)": "not be negative",
    "[1, inf)": "be at least 1",
    "[2, inf)": "be at least 2",
}


def check_within(interval: str, **values: float | Sequence[float]) -> None:
    """Raise ValueError for the first value outside an interval, such as "[0, 1)" or "(0, inf)".

    Of a sequence each number must lie in it, and there must be one.
    """
    for name, value in values.items():
        _check(name, value, interval)


def check_fields(config: Any, interval: str, *names: str) -> None:
    """`check_within` of fields of a dataclass, None being allowed where the field's type says so,
    and whole numbers alone where it is int."""
    for name in names:
        kinds = set(re.findall(r"\w+", str(type(config).__dataclass_fields__[name].type)))
        null, whole = "None" in kinds, "int" in kinds and "float" not in kinds
        value = getattr(config, name)
        if not (null and value is None):
            _check(name, value, interval, whole, ", or be null" if null else "")


def _check(name: str, value: Any, interval: str, whole: bool = False, null: str = "") -> None:
    each_of = value if isinstance(value, Sequence) else (value,)
    wrong = [each for each in each_of if not _lies(each, interval, whole)]
    if wrong or not each_of:
        must = _WORDS.get(interval, f"lie in {interval}")
        if whole and not isinstance((wrong or [0])[0], numbers.Integral):
            must += ", a whole number"
        elif math.inf in wrong:
            must += " and finite"
        raise ValueError(f"{name} must {must}{null}; got {value}")


def _lies(value: Any, interval: str, whole: bool) -> bool:
    kind = numbers.Integral if whole else numbers.Real
    if isinstance(value, bool) or not isinstance(value, kind):
        return False
    number = float(value)
    low, high = map(float, interval[1:-1].split(","))
    above = low <= number if interval[0] == "[" else low < number
    return above and (number <= high if interval[-1] == "]" else number < high)
