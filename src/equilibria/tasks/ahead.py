"""The batch of the next step, made while the model learns from the one before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from equilibria.tasks.feed import Batch, Part


class Ahead:
    """Makes batches in a thread of its own, each one step before it is asked for.

    Args:
        make: step, part -> batch; a function of these alone, so that what is made ahead changes
            nothing.
    """

    def __init__(self, make: Callable[[int, Part], Batch]) -> None:
        self.make = make
        self._pool = ThreadPoolExecutor(1)
        self._begun: dict[tuple[int, Part], Future[Batch]] = {}

    def batch(self, step: int, part: Part) -> Batch:
        """Return the batch of a step, and begin to make that of the next.

        Raises:
            Exception: what `make` raises.
        """
        batch = self._future(step, part).result()
        self._begun = {at: each for at, each in self._begun.items() if at[0] >= step}
        del self._begun[step, part]
        self._future(step + 1, part)
        return batch

    def _future(self, step: int, part: Part) -> Future[Batch]:
        if (step, part) not in self._begun:
            self._begun[step, part] = self._pool.submit(self.make, step, part)
        return self._begun[step, part]
