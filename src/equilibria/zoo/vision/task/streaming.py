"""Samples in shards, each shard read as a whole: which of them a step has."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import default_collate
from typing_extensions import override

from equilibria.run.tasks.feed import WHOLE, Batch, Feed, Part
from equilibria.run.tasks.normalization import PixelStatistics
from equilibria.zoo.io import image_files
from equilibria.zoo.io.prefetch import Ahead
from equilibria.zoo.vision.data import shards as files
from equilibria.zoo.vision.data.shards import Raw, Shard
from equilibria.zoo.vision.data.shards.images import ShardImages, Shelf
from equilibria.zoo.vision.task.batches import prepare

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
            order = _shuffle(len(self.shards), (self.seed, number)).tolist()
            ends = torch.tensor([self.shards[shard].samples for shard in order]).cumsum(0)
            self._pass, self._orders = (number, order, ends), {}
        return self._pass[1:]

    def _order(self, number: int, shard: int) -> list[int]:
        """The order of the samples of a shard in a pass."""
        self._of(number)
        if shard not in self._orders:
            key = (self.seed, number, shard + 1)
            self._orders[shard] = _shuffle(self.shards[shard].samples, key).tolist()
        return self._orders[shard]


def _shuffle(count: int, key: tuple[int, ...]) -> Tensor:
    """The numbers up to `count` in an order that follows from a key alone."""
    seed = 0
    for part in key:
        seed = (1_000_003 * seed + part + 1) % 2**63
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


# --- sharded --------------------------------------------------------------------------------------

# A feed of samples in shards, which need not fit on the disk of a machine.


class Sharded(Feed):
    """Samples in shards, each shard read as a whole, in an order of its own in each pass.

    In each pass the shards come in another order, and the samples of a shard in another one too.
    That row of samples is parted into `lanes` of equal length, which are read side by side: the
    batch of a step has as many samples of each lane. All this is a function of the seed and the
    step alone, so a run may go on with another number of processes: each sample of a pass is still
    seen once. What is left over after the last full batch waits for another pass.

    A process holds the shards that its part of a batch comes from, about one for each lane that it
    reads, and reads the next ones in the background. With as many lanes as processes, or a
    multiple, each process reads shards of its own; with one lane, all read every shard.

    Args:
        shards: what there is to learn from, as of `zoo.vision.data.shards.read_index`.
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
        self.batch_size, self.decode = batch_size, decode
        self._lanes = Lanes(shards, batch_size, seed, lanes, read)
        self.steps = self._lanes.steps

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        """Return the batch of `step`: this process's part of it.

        Raises:
            DataError: a shard is missing or damaged, or has not as many samples as the index says.
        """
        pairs = [self.decode(sample) for _, sample in self._lanes.samples(step, part)]
        inputs, targets = default_collate(pairs)
        return Batch(inputs, targets, size=len(pairs))


# --- streamed -------------------------------------------------------------------------------------

# Batches of images from shards, decoded while the model learns from the batch before.


class StreamedImages(Feed):
    """Images from shards, in the order of `Lanes`, each a random part of it if that is asked for.

    Args:
        images: what to learn from.
        batch_size: images a batch, of all processes together.
        seed: of the orders and the parts.
        lanes: parts that are read side by side; None for `usual`.
        crop: minimum share of an image's area that is shown; None for what `images` show.
        statistics: of normalised images; None for pixels in [0, 1].

    Raises:
        ValueError: the images do not fill one batch, or the lanes do not divide it.
    """

    def __init__(
        self,
        images: ShardImages,
        batch_size: int,
        seed: int,
        *,
        lanes: int | None = None,
        crop: float | None = None,
        statistics: PixelStatistics | None = None,
    ) -> None:
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.crop, self.statistics = crop, statistics
        lanes = usual(batch_size, len(images.shards)) if lanes is None else lanes
        self.lanes = Lanes(images.shards, batch_size, seed, lanes)
        self.steps = self.lanes.steps
        self._ahead = Ahead(self._make)

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        """Return the batch of `step`, and begin to make the next.

        Raises:
            DataError: a shard cannot be read, or a sample is no image with its class.
        """
        return self._ahead.batch(step, part)

    def _make(self, step: int, part: Part) -> Batch:
        drawn = None
        if self.crop is not None:
            # Drawn for the whole batch: a function of seed and step, on any number of processes.
            seed = random.Random(f"shards {self.seed} {step}").getrandbits(63)
            numbers = image_files.draw(self.batch_size, torch.Generator().manual_seed(seed))
            drawn = numbers[part.of(self.batch_size)]
        samples = self.lanes.samples(step, part)
        images, targets = self.images.decode(samples, drawn, self.crop or 1.0)
        return Batch(prepare(images / 255, self.statistics), targets)
