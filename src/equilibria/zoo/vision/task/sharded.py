"""A feed of samples in shards, which need not fit on the disk of a machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.utils.data import default_collate
from typing_extensions import override

from equilibria.run.tasks.feed import WHOLE, Batch, Feed, Part
from equilibria.zoo.vision.data import shards as files
from equilibria.zoo.vision.data.shards import Raw, Shard
from equilibria.zoo.vision.task.lanes import Lanes

__all__ = ["Sharded"]


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
