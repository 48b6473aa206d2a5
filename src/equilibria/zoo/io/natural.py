"""An order of files in which image 9 comes before image 10."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["natural"]


def natural(path: Path) -> tuple[tuple[tuple[int, str | int], ...], str]:
    """The key of an order in which numbers within names count as numbers."""
    text = str(path)
    parts = re.split(r"([0-9]+)", text)
    # Every second part is a number. Names such as 1 and 01 differ in the text alone.
    return tuple((place % 2, int(p) if place % 2 else p) for place, p in enumerate(parts)), text
