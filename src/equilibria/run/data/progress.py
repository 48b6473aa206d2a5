"""Progress of long work, on the standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")

# Seconds between two lines: on a terminal one line that is rewritten, elsewhere a new one each.
_TERMINAL, _FILE = 1.0, 30.0


def tracked(items: Iterable[_Item], total: int | None, doing: str) -> Iterator[_Item]:
    """Yield items one by one; if that takes long, report how many there were.

    Args:
        items: What to go through.
        total: How many there are; None if unknown.
        doing: What is being done, e.g. ``"Reading images"``.
    """
    terminal = sys.stderr.isatty()
    every = _TERMINAL if terminal else _FILE
    whole = "" if total is None else f" of {total:,}"
    latest, printed = time.monotonic(), False
    for number, item in enumerate(items):
        if (now := time.monotonic()) - latest > every:
            line = f"{doing}: {number:,}{whole}"
            print(line, end="\r" if terminal else "\n", file=sys.stderr, flush=True)
            latest, printed = now, True
        yield item
    if printed and terminal and total is not None:
        print(f"{doing}: {total:,}{whole}", file=sys.stderr, flush=True)
