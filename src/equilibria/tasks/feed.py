"""Feeds: the batch of each training step, as a function of the step alone."""

from __future__ import annotations

import abc
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from typing_extensions import override


class Indexed(Protocol):
    """Samples and their targets, in memory or read when they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice | Tensor, /) -> tuple[Any, Any]:
        """Inputs and targets, trees of tensors, of the samples that a slice or positions name."""
        ...


class Batch(NamedTuple):
    """What a model is given at once, and what it should answer: trees of tensors.

    A tree is a tensor, or a tuple, a list or a dictionary of trees. Where no axis counts samples,
    as in a batch of graphs, `size` does.
    """

    inputs: Any
    """What the model is called with."""
    targets: Any
    """What the task's loss and metrics take."""
    begins: bool = True
    """Whether this is a beginning. Otherwise each row goes on where that of the batch before ended,
    whose carry the model is given."""
    size: int | None = None
    """Number of samples; None for the length of the first tensor."""
    numbers: Tensor | None = None
    """(samples,) int64, their numbers among those of a task's `numbered`; None for all of them, in
    order, and where samples are not numbered."""

    @classmethod
    def of(cls, samples: Indexed, places: slice | Tensor) -> Batch:
        """Return the samples at some places; a slice has a beginning and an end."""
        size = places.stop - places.start if isinstance(places, slice) else len(places)
        return cls(*samples[places], size=size)

    @property
    def samples(self) -> int:
        """Number of samples."""
        if self.size is not None:
            return self.size
        leaves = pytree.tree_leaves((self.inputs, self.targets))
        return next(len(leaf) for leaf in leaves if isinstance(leaf, Tensor))


@dataclass(frozen=True)
class Part:
    """The part of all work that one process does: the share `index` of `count` equal ones."""

    index: int = 0
    count: int = 1

    def cut(self, index: int, count: int) -> Part:
        """Return one of `count` equal shares of this one."""
        return Part(self.index * count + index, self.count * count)

    def of(self, length: int) -> slice:
        """Return which of `length` rows are this process's; sizes differ by one at most."""
        size, rest = divmod(length, self.count)
        start = self.index * size + min(self.index, rest)
        return slice(start, start + size + (self.index < rest))


WHOLE = Part()
"""The part of a single process: everything."""


class Feed(abc.ABC):
    """Batches of training samples.

    Attributes:
        steps: batches of a pass over the data.
    """

    steps: int

    @abc.abstractmethod
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        """Return the batch of `step`, counted from 0 over all passes: this process's part of it."""


class Order:
    """Which samples are in the batch of a step, in an order of its own in each pass.

    The order is a function of the seed and the pass alone; what is left over after the last full
    batch waits for another pass.

    Args:
        count: samples to learn from.
        batch_size: samples a batch, of all processes together.
        seed: of the orders.

    Attributes:
        steps: batches of a pass.

    Raises:
        ValueError: the samples do not fill one batch.
    """

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self.steps = count // batch_size
        if self.steps == 0:
            raise ValueError(
                f"batch_size is {batch_size} but the run has only {count:,} training sample"
                f"{'s' if count > 1 else ''}: take at most --batch-size {count}"
            )
        self._latest = (-1, torch.empty(0))

    def of(self, number: int) -> Tensor:
        """Return the order of the samples in pass `number`."""
        if self._latest[0] != number:
            generator = torch.Generator().manual_seed(1_000_003 * self.seed + number)
            self._latest = (number, torch.randperm(self.count, generator=generator))
        return self._latest[1]

    def places(self, step: int, part: Part = WHOLE) -> Tensor:
        """Return which samples are in the batch of `step`: this process's part of them."""
        number, position = divmod(step, self.steps)
        index = self.of(number)[position * self.batch_size :][: self.batch_size]
        return index[part.of(self.batch_size)]


class Shuffled(Feed):
    """Samples in the order that `Order` gives them.

    Args:
        samples: what to learn from.
        batch_size: samples a batch, of all processes together.
        seed: of the orders.

    Raises:
        ValueError: the samples do not fill one batch.
    """

    def __init__(self, samples: Indexed, batch_size: int, seed: int) -> None:
        self.samples, self.order = samples, Order(len(samples), batch_size, seed)
        self.steps = self.order.steps

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        return Batch.of(self.samples, self.order.places(step, part))


class Tokens(Protocol):
    """A long row of token ids, of which a slice is a tensor (n,) of int64."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice, /) -> Tensor: ...


class Streams(Feed):
    """A text cut into `streams` that are read side by side, a segment a step.

    Row b of the batch of step k + 1 goes on where row b of the batch of step k ended; at the
    beginning of a pass each stream begins anew. What is left over moves the place at which a pass
    begins, at random, so that segments are cut differently in each.

    Args:
        tokens: the text.
        streams: rows of a batch, of all processes together.
        length: tokens of a segment.
        seed: of the places at which passes begin.

    Raises:
        ValueError: the text is too short.
    """

    def __init__(self, tokens: Tokens, streams: int, length: int, seed: int) -> None:
        self.tokens, self.streams, self.length, self.seed = tokens, streams, length, seed
        self.steps = (len(tokens) - length) // (streams * length)
        if self.steps <= 0:
            raise ValueError(
                f"{streams} streams in segments of {length} tokens need a text of at least "
                f"{(streams + 1) * length} tokens to learn from, and this one has {len(tokens)}: "
                "lower batch_size or task.length"
            )

    def begin(self, number: int) -> int:
        """Return the token at which pass `number` begins."""
        spare = len(self.tokens) - 1 - self.streams * self.steps * self.length
        return random.Random(f"pass {self.seed} {number}").randint(0, spare)

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        number, position = divmod(step, self.steps)
        rows = range(self.streams)[part.of(self.streams)]
        first = self.begin(number) + position * self.length
        starts = [first + row * self.steps * self.length for row in rows]
        return segment(self.tokens, starts, [self.length] * len(starts), position == 0)


def segment(tokens: Tokens, starts: Sequence[int], lengths: Sequence[int], begins: bool) -> Batch:
    """Return inputs and targets (rows, longest), each target the token after its input.

    A row that is shorter than the longest is filled up with token 0, of which nothing is asked.
    """
    longest = max(lengths)
    inputs = torch.zeros(len(starts), longest, dtype=torch.int64)
    targets = torch.full((len(starts), longest), -1, dtype=torch.int64)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        if length:
            text = tokens[start : start + length + 1]
            inputs[row, :length], targets[row, :length] = text[:-1], text[1:]
    return Batch(inputs, targets, begins)
