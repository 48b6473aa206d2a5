"""A feed of samples in shards, which need not fit on the disk of a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate
from typing_extensions import override

from equilibria.data import shards as files
from equilibria.data.errors import DataError
from equilibria.data.shards import Shard
from equilibria.tasks.feed import WHOLE, Batch, Feed, Part

__all__ = ["Sharded"]

Raw = dict[str, bytes]
"""The files of a sample by their extension."""


class Sharded(Feed):
    """Samples in shards, each shard read as a whole, in an order of its own in each pass.

    In each pass the shards come in another order, and the samples of a shard in another one too.
    That row of samples is parted into `lanes` of equal length, which are read side by side: the
    batch of a step has as many samples of each lane. All this is a function of the seed and the
    step alone, so a run may go on with another number of processes: each sample of a pass is still
    seen once. What is left over after the last full batch waits for another pass.

    A process holds the shards that its part of a batch comes from, about one for each lane that it
    reads. With as many lanes as processes, or a multiple, each process reads shards of its own;
    with one lane, all read every shard.

    Args:
        shards: what there is to learn from, as of `data.shards.read_index`.
        batch_size: samples a batch, of all processes together.
        seed: of the orders.
        decode: gives inputs and targets of a sample, trees of tensors or numbers; called each time
            that it is shown.
        lanes: parts that are read side by side; they divide `batch_size`.
        read: gives the samples of a shard by its address.

    Raises:
        ValueError: the samples do not fill one batch, or the lanes do not divide it.

    Example:
        >>> feed = Sharded(read_index("train.json"), 256, seed=0, decode=decode, lanes=8)
        >>> feed.batch(step, Part(rank, processes))
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        batch_size: int,
        seed: int,
        decode: Callable[[Raw], tuple[Any, Any]],
        *,
        lanes: int = 1,
        read: Callable[[str], Sequence[Raw]] = files.samples,
    ) -> None:
        self.shards, self.batch_size, self.seed = tuple(shards), batch_size, seed
        self.decode, self.lanes, self.read = decode, lanes, read
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
        self._held: dict[int, tuple[Sequence[Raw], list[int]]] = {}
        self._pass: tuple[int, list[int], Tensor] | None = None

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        """Return the batch of `step`: this process's part of it.

        Raises:
            DataError: a shard is missing or damaged, or has not as many samples as the index says.
        """
        number, wanted = step // self.steps, self.places(step, part)
        self._hold(number, dict.fromkeys(shard for shard, _ in wanted))
        pairs = []
        for shard, place in wanted:
            samples, order = self._held[shard]
            pairs.append(self.decode(samples[order[place]]))
        inputs, targets = default_collate(pairs)
        return Batch(inputs, targets, size=len(pairs))

    def places(self, step: int, part: Part = WHOLE) -> list[tuple[int, int]]:
        """Return for each sample of a batch its shard, and its number in the order of the pass."""
        number, position = divmod(step, self.steps)
        order, ends = self._of(number)
        each = self.batch_size // self.lanes
        found: list[tuple[int, int]] = []
        for row in range(self.batch_size)[part.of(self.batch_size)]:
            lane, inside = divmod(row, each)
            at = (lane * self.steps + position) * each + inside
            turn = int(torch.searchsorted(ends, at, right=True))
            found.append((order[turn], at - (int(ends[turn - 1]) if turn else 0)))
        return found

    def _of(self, number: int) -> tuple[list[int], Tensor]:
        """The order of the shards in a pass, and after how many samples each of them ends."""
        if self._pass is None or self._pass[0] != number:
            order = _shuffled(len(self.shards), (self.seed, number)).tolist()
            ends = torch.tensor([self.shards[shard].samples for shard in order]).cumsum(0)
            self._pass = number, order, ends
        return self._pass[1:]

    def _hold(self, number: int, wanted: Iterable[int]) -> None:
        """Read the shards that are wanted and not there yet, and let go of the others."""
        held: dict[int, tuple[Sequence[Raw], list[int]]] = {}
        for shard in wanted:
            known = self.shards[shard]
            samples = self._held[shard][0] if shard in self._held else self.read(known.url)
            if len(samples) != known.samples:
                raise DataError(
                    f"{known.url} has {len(samples)} samples and its index says {known.samples}: "
                    "make the index anew"
                )
            # In each pass they come in an order of their own.
            order = _shuffled(known.samples, (self.seed, number, shard + 1)).tolist()
            held[shard] = samples, order
        self._held = held


def _shuffled(count: int, key: tuple[int, ...]) -> Tensor:
    """The numbers up to `count` in an order that follows from a key alone."""
    seed = 0
    for part in key:
        seed = (1_000_003 * seed + part + 1) % 2**63
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
