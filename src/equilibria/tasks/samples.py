"""Tasks whose data are samples that have nothing to do with each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from typing_extensions import override

from equilibria.data.dataset import Samples
from equilibria.tasks.base import Task, known
from equilibria.tasks.feed import WHOLE, Batch, Feed, Part, Shuffled


class SampleTask(Task):
    """Samples to learn from, shuffled anew in each pass, and samples to be judged by.

    Args:
        samples: by the name of the split, "train" and "test" among them.
        checksum: of all of them.
    """

    def __init__(self, samples: Mapping[str, Samples], checksum: str) -> None:
        self.samples = dict(samples)
        self.splits = tuple(self.samples)
        self.judged = "valid" if "valid" in self.splits else "test"
        self.checksum = checksum

    @property
    def train(self) -> Samples:
        """Samples to learn from."""
        return self.samples["train"]

    @property
    def test(self) -> Samples:
        """Samples to be judged by in the end."""
        return self.samples["test"]

    @override
    def feed(self, batch_size: int, seed: int) -> Feed:
        return Shuffled(self.train, batch_size, seed)

    @override
    def batches(self, split: str, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        samples = self.samples[known(self, split)]
        mine = part.of(len(samples))
        for start in range(mine.start, mine.stop, batch_size):
            yield Batch(*samples[slice(start, min(start + batch_size, mine.stop))])

    @override
    def sample(self, split: str, count: int) -> Batch:
        return Batch(*self.samples[known(self, split)][slice(count)])
