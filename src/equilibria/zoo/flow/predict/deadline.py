"""How many evaluations fit into a time."""

from __future__ import annotations

from collections import deque
from statistics import median

__all__ = ["Deadline"]

SPENT = 0.9
"""Share of the time that is planned with."""

REMEMBERED = 5
"""Solves of which an evaluation's time is the median."""


class Deadline:
    """Chooses the limit of evaluations by what evaluations have taken so far.

    A solve is not interrupted, so its limit is set beforehand: the time that everything else
    leaves, divided by that of an evaluation, each the median over the last five pairs. A tenth of
    the deadline is held in reserve, since evaluations vary. At least one is made.

    Args:
        seconds: for a pair.

    Raises:
        ValueError: it is not positive.
    """

    def __init__(self, seconds: float) -> None:
        if not seconds > 0:
            raise ValueError(f"a deadline must be positive; got {1000 * seconds:g} ms")
        self.seconds = seconds
        self._size: tuple[int, ...] = ()
        self._other: deque[float] = deque(maxlen=REMEMBERED)
        self._each: deque[float] = deque(maxlen=REMEMBERED)

    def knows(self, size: tuple[int, ...]) -> bool:
        """Return whether images of a size have been timed; others are forgotten."""
        if size != self._size:
            self._size = size
            self._other.clear()
            self._each.clear()
        return bool(self._each)

    def add(self, other: float, solving: float, evaluations: int) -> None:
        """Record a pair.

        Args:
            other: seconds that it took outside its solve.
            solving: seconds of the solve.
            evaluations: in it, at least 1.
        """
        self._other.append(other)
        self._each.append(solving / evaluations)

    def limit(self) -> int:
        """Return how many evaluations the next pair may take."""
        left = SPENT * self.seconds - median(self._other)
        return max(1, int(left / max(median(self._each), 1e-9)))
