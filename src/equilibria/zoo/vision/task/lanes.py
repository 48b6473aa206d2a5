"""Samples in shards, each shard read as a whole: which of them a step has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from equilibria.run.tasks.feed import WHOLE, Part
from equilibria.zoo.vision.data import shards as files
from equilibria.zoo.vision.data.shards import Raw, Shard
from equilibria.zoo.vision.data.shards.shelf import Shelf

__all__ = ["MOST", "Lanes", "usual"]

MOST = 8
"""Lanes that are read side by side where nobody says how many."""


def usual(batch_size: int, shards: int) -> int:
    """Return how many lanes a batch is read in: as many as divide it, `MOST` and shards at most."""
    most = min(MOST, batch_size, shards)
    return next(lanes for lanes in range(most, 0, -1) if batch_size % lanes == 0)


class Lanes:
    """Samples in shards, in an order of their own in each pass, parted into lanes.

    In each pass the shards come in another order, and the samples of a shard in another one too.
    That row of samples is parted into `lanes` of equal length, which are read side by side: the
    batch of a step has as many samples of each lane. All this is a function of the seed and the
    step alone; what is left over after the last full batch waits for another pass.

    A process holds about two shards for each lane that it reads: the one that its samples come
    from, and the one after it, which is read in the background.

    Args:
        shards: what there is to learn from.
        batch_size: samples a batch, of all processes together.
        seed: of the orders.
        lanes: parts that are read side by side; they divide `batch_size`.
        read: gives the samples of a shard by its address.

    Attributes:
        steps: batches of a pass.

    Raises:
        ValueError: the samples do not fill one batch, or the lanes do not divide it.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        batch_size: int,
        seed: int,
        lanes: int = 1,
        read: Callable[[str], Sequence[Raw]] = files.samples,
    ) -> None:
        self.shards, self.batch_size, self.seed = tuple(shards), batch_size, seed
        self.lanes = lanes
        count = sum(shard.samples for shard in self.shards)
        if lanes < 1 or batch_size % lanes:
            raise ValueError(
                f"lanes must divide batch_size, {batch_size}, so that each gives as many samples "
                f"to a batch; got {lanes}"
            )
        self.steps = count // batch_size
        if self.steps == 0:
            raise ValueError(
                f"batch_size is {batch_size} but the shards have only {count:,} samples: take at "
                f"most --batch-size {count}"
            )
        self._shelf = Shelf(self.shards, read)
        self._pass: tuple[int, list[int], Tensor] | None = None
        self._orders: dict[int, list[int]] = {}

    def samples(self, step: int, part: Part = WHOLE) -> list[tuple[str, Raw]]:
        """Return the samples of a step, each with the address of its shard: this process's part.

        Raises:
            DataError: a shard is missing or damaged, or has not as many samples as the index says.
        """
        wanted = self.places(step, part)
        held = self._shelf.take({shard for shard, _ in wanted}, self.soon(step, part), step)
        number = step // self.steps
        orders = {shard: self._order(number, shard) for shard in held}
        return [
            (self.shards[shard].url, held[shard][orders[shard][place]]) for shard, place in wanted
        ]

    def places(self, step: int, part: Part = WHOLE) -> list[tuple[int, int]]:
        """Return for each sample of a batch its shard, and its number in the order of the pass."""
        number = step // self.steps
        order, ends = self._of(number)
        found: list[tuple[int, int]] = []
        for first, last, _ in self._stretches(step, part):
            for at in range(first, last):
                turn = int(torch.searchsorted(ends, at, right=True))
                found.append((order[turn], at - (int(ends[turn - 1]) if turn else 0)))
        return found

    def soon(self, step: int, part: Part = WHOLE) -> list[int]:
        """Return the shard after the present one in each lane that this process reads."""
        order, ends = self._of(step // self.steps)
        found: list[int] = []
        for _, last, end in self._stretches(step, part):
            turn = int(torch.searchsorted(ends, last - 1, right=True))
            if int(ends[turn]) < end:
                found.append(order[turn + 1])
        return found

    def _stretches(self, step: int, part: Part) -> Iterator[tuple[int, int, int]]:
        """Where in the row of a pass a part of a batch lies: first, last, and the lane's end."""
        position = step % self.steps
        each = self.batch_size // self.lanes
        mine = part.of(self.batch_size)
        for lane in range(mine.start // each, -(-mine.stop // each)):
            begin = (lane * self.steps + position) * each - lane * each
            first = begin + max(mine.start, lane * each)
            last = begin + min(mine.stop, (lane + 1) * each)
            yield first, last, (lane + 1) * self.steps * each

    def _of(self, number: int) -> tuple[list[int], Tensor]:
        """The order of the shards in a pass, and after how many samples each of them ends."""
        if self._pass is None or self._pass[0] != number:
            order = _shuffled(len(self.shards), (self.seed, number)).tolist()
            ends = torch.tensor([self.shards[shard].samples for shard in order]).cumsum(0)
            self._pass, self._orders = (number, order, ends), {}
        return self._pass[1:]

    def _order(self, number: int, shard: int) -> list[int]:
        """The order of the samples of a shard in a pass."""
        self._of(number)
        if shard not in self._orders:
            key = (self.seed, number, shard + 1)
            self._orders[shard] = _shuffled(self.shards[shard].samples, key).tolist()
        return self._orders[shard]


def _shuffled(count: int, key: tuple[int, ...]) -> Tensor:
    """The numbers up to `count` in an order that follows from a key alone."""
    seed = 0
    for part in key:
        seed = (1_000_003 * seed + part + 1) % 2**63
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
