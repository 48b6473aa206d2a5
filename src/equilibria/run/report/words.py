"""Numbers and nested dictionaries as text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from equilibria.metric import Metric

UNKNOWN = "–"

Row = TypeVar("Row")


@dataclass(frozen=True)
class TextTable:
    """Rows of text under a row of heads."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def keep_known(
    columns: Sequence[tuple[str, Callable[[Row], str]]], rows: Sequence[Row]
) -> TextTable:
    """The table of these columns, each a head and what it has of a row.

    Columns in which nothing is known are left out.
    """
    cells = [(head, [text(row) for row in rows]) for head, text in columns]
    kept = [(head, column) for head, column in cells if any(each != UNKNOWN for each in column)]
    return TextTable(
        [head for head, _ in kept], [list(row) for row in zip(*(c for _, c in kept), strict=True)]
    )


def decimal(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f}" if math.isfinite(value) else UNKNOWN


def figure(metric: Metric, value: float) -> str:
    return metric.format(value) if math.isfinite(value) else UNKNOWN


def duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return UNKNOWN
    if seconds < 90:
        return f"{seconds:.{int(seconds < 9.5)}f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB" if math.isfinite(size) else UNKNOWN


def count(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else UNKNOWN


def flat(tree: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Leaves of a nested dictionary as (path, text)."""
    if isinstance(tree, Mapping):
        return [
            item
            for key, value in tree.items()
            for item in flat(value, f"{prefix}.{key}" if prefix else str(key))
        ]
    return [(prefix, _text(tree))]


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) >= 100_000 else str(value)
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value)
    return str(value)
