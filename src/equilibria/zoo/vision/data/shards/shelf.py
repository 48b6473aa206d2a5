"""Shards in memory: those in use, and those that are read before they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from equilibria.run.data.errors import DataError
from equilibria.zoo.vision.data.shards.archive import Raw, samples
from equilibria.zoo.vision.data.shards.index import Shard

__all__ = ["Shelf"]

THREADS = 4
"""Shards that are read at once."""


class Shelf:
    """Holds the shards that were asked for lately, and reads others in the background.

    Only one thread may use it.

    Args:
        shards: What there is.
        read: Gives the samples of a shard by its address.
    """

    def __init__(
        self, shards: Sequence[Shard], read: Callable[[str], Sequence[Raw]] = samples
    ) -> None:
        self.shards, self.read = shards, read
        self._held: dict[int, Future[Sequence[Raw]]] = {}
        self._asked: dict[int, int] = {}
        self._pool: ThreadPoolExecutor | None = None

    def take(
        self, wanted: Iterable[int], soon: Iterable[int], time: int
    ) -> dict[int, Sequence[Raw]]:
        """Return shards by their numbers, and begin to read those that are wanted soon.

        Args:
            wanted: Numbers of shards.
            soon: Of those to read in the background.
            time: A number that grows; shards not asked for at this time or the one before it are
                let go.

        Raises:
            DataError: If a wanted shard cannot be read, or has not as many samples as its index
                says.
        """
        wanted, soon = list(wanted), list(soon)
        self._asked |= dict.fromkeys((*wanted, *soon), time)
        for number in [each for each in self._held if self._asked[each] < time - 1]:
            self._held.pop(number).cancel()
            del self._asked[number]
        for number in (*wanted, *soon):
            if number not in self._held:
                self._pool = self._pool or ThreadPoolExecutor(THREADS)
                self._held[number] = self._pool.submit(self._read, self.shards[number])
        return {number: self._held[number].result() for number in wanted}

    def _read(self, shard: Shard) -> Sequence[Raw]:
        found = self.read(shard.url)
        if len(found) != shard.samples:
            raise DataError(
                f"{shard.url} has {len(found)} samples and its index says {shard.samples}: "
                "rebuild the index"
            )
        return found
