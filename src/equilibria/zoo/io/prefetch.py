"""The batch of the next step, made while the model learns from the one before."""

from __future__ import annotations

import abc
import random
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.run.tasks.feed import WHOLE, Batch, Feed, Order, Part


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


class AheadFeed(Feed, abc.ABC):
    """Samples in an order of their own in each pass, whose batches are made ahead.

    What is random about a batch is a function of the seed and the step, as the order is: what is
    made ahead changes nothing, and neither do more processes.

    Args:
        count: samples to learn from.
        batch_size: samples a batch, of all processes together.
        seed: of the orders, and of all that is random.

    Raises:
        ValueError: the samples do not fill one batch.
    """

    stream: ClassVar[str]
    """Tells this feed's random numbers from those of others with the same seed."""

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        self.seed = seed
        self.order = Order(count, batch_size, seed)
        self.steps = self.order.steps
        self._ahead = Ahead(self._make)

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        """Return the batch of `step`, and begin to make the next.

        Raises:
            DataError: a file cannot be read or is damaged; the message names it.
        """
        return self._ahead.batch(step, part)

    @abc.abstractmethod
    def make_batch(self, places: Tensor, step: int, part: Part) -> Batch:
        """Return the batch of the samples at `places`: this process's part of a step."""

    def generator(self, step: int) -> torch.Generator:
        """Return where the random numbers of a step's batch come from, all processes'."""
        seed = random.Random(f"{self.stream} {self.seed} {step}").getrandbits(63)
        return torch.Generator().manual_seed(seed)

    def draw_numbers(self, step: int, part: Part, numbers: int) -> Tensor:
        """Return so many numbers in [0, 1) for each sample of this process's part."""
        whole = torch.rand(self.order.batch_size, numbers, generator=self.generator(step))
        return whole[part.of(self.order.batch_size)]

    def _make(self, step: int, part: Part) -> Batch:
        return self.make_batch(self.order.places(step, part), step, part)
