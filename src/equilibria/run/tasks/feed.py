"""Feeds: the batch of each training step, determined by the step alone."""

from __future__ import annotations

import abc
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from typing_extensions import override

from equilibria.words import plural


class Indexed(Protocol):
    """Samples and their targets, in memory or read on demand."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice | Tensor, /) -> tuple[Any, Any]:
        """Return inputs and targets, trees of tensors, of the samples at some positions."""
        ...


class Preparation(Protocol):
    """What inputs are prepared by."""

    def apply(self, x: Tensor, /) -> Tensor:
        """Return inputs as the model is to see them."""
        ...


@runtime_checkable
class PreparedSamples(Indexed, Protocol):
    """Samples whose inputs are prepared by statistics as they are given out.

    An exported model takes the inputs that are not prepared yet, and does that itself.
    """

    @property
    def raw(self) -> Indexed:
        """The samples before that."""
        ...

    @property
    def statistics(self) -> Preparation:
        """What their inputs are prepared by."""
        ...


class Batch(NamedTuple):
    """Inputs and targets of a model: trees of tensors.

    A tree is a tensor, or a tuple, a list or a dictionary of trees. If there is no batch axis, as
    for graphs, `size` gives the number of samples.
    """

    inputs: Any
    """Arguments of the model."""
    targets: Any
    """For the task's loss and metrics."""
    begins: bool = True
    """Whether sequences begin here. Otherwise each row continues that of the previous batch, whose
    carry the model receives."""
    size: int | None = None
    """Number of samples; None for the length of the first tensor."""
    numbers: Tensor | None = None
    """(samples,) int64, their numbers within a task's `numbered`; None for all of them, in order,
    or if samples are not numbered."""

    @classmethod
    def of(cls, samples: Indexed, places: slice | Tensor) -> Batch:
        """Return the samples at given positions; a slice must have a start and a stop."""
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
    """The part of the work that one process does: number `index` of `count` equal parts."""

    index: int = 0
    count: int = 1

    def divide(self, index: int, count: int) -> Part:
        """Return one of `count` equal parts of this part."""
        return Part(self.index * count + index, self.count * count)

    def of(self, length: int) -> slice:
        """Return which of `length` rows belong to this part; sizes differ by at most one."""
        size, rest = divmod(length, self.count)
        start = self.index * size + min(self.index, rest)
        return slice(start, start + size + (self.index < rest))


WHOLE = Part()
"""The part of a single process: everything."""


class Feed(abc.ABC):
    """Batches of training samples.

    Attributes:
        steps: batches per pass over the data.
    """

    steps: int

    @abc.abstractmethod
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        """Return this process's part of the batch of `step`, counted from 0 over all passes."""


class Order:
    """Which samples are in the batch of a step, reshuffled in each pass.

    The order depends only on the seed and the pass; samples that do not fill a batch are left out
    of that pass.

    Args:
        count: number of training samples.
        batch_size: samples per batch, over all processes.
        seed: for shuffling.

    Attributes:
        steps: batches per pass.

    Raises:
        ValueError: there are fewer samples than in one batch.
    """

    def __init__(self, count: int, batch_size: int, seed: int) -> None:
        self.count, self.batch_size, self.seed = count, batch_size, seed
        self.steps = count // batch_size
        if self.steps == 0:
            raise ValueError(
                f"batch_size is {batch_size} but the run has only "
                f"{plural(count, 'training sample')}: take at most --batch-size {count}"
            )
        self._latest = (-1, torch.empty(0))

    def of(self, number: int) -> Tensor:
        """Return the order of the samples in pass `number`."""
        if self._latest[0] != number:
            generator = torch.Generator().manual_seed(1_000_003 * self.seed + number)
            self._latest = (number, torch.randperm(self.count, generator=generator))
        return self._latest[1]

    def places(self, step: int, part: Part = WHOLE) -> Tensor:
        """Return the samples in this process's part of the batch of `step`."""
        number, position = divmod(step, self.steps)
        index = self.of(number)[position * self.batch_size :][: self.batch_size]
        return index[part.of(self.batch_size)]


class Shuffled(Feed):
    """Samples in the order given by `Order`.

    Args:
        samples: the training samples.
        batch_size: samples per batch, over all processes.
        seed: for shuffling.

    Raises:
        ValueError: there are fewer samples than in one batch.
    """

    def __init__(self, samples: Indexed, batch_size: int, seed: int) -> None:
        self.samples, self.order = samples, Order(len(samples), batch_size, seed)
        self.steps = self.order.steps

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        return Batch.of(self.samples, self.order.places(step, part))


class TokenSequence(Protocol):
    """A long sequence of token ids; slices are int64 tensors (n,)."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice, /) -> Tensor: ...


class Streams(Feed):
    """A text divided into `streams` that are read in parallel, one segment per step.

    Row b of the batch of step k + 1 continues row b of the batch of step k; at the start of a pass
    every stream starts again. Each pass starts at a random offset, as far as there are tokens left
    over, so that its segment boundaries differ.

    Args:
        tokens: the text.
        streams: rows per batch, over all processes.
        length: tokens per segment.
        seed: for the offsets of the passes.

    Raises:
        ValueError: the text is too short.
    """

    def __init__(self, tokens: TokenSequence, streams: int, length: int, seed: int) -> None:
        self.tokens, self.streams, self.length, self.seed = tokens, streams, length, seed
        self.steps = (len(tokens) - length) // (streams * length)
        if self.steps <= 0:
            raise ValueError(
                f"{streams} streams in segments of {length} tokens need a text of at least "
                f"{(streams + 1) * length} training tokens, but this one has {len(tokens)}: "
                "lower batch_size or task.length"
            )

    def begin(self, number: int) -> int:
        """Return the token at which pass `number` starts."""
        spare = len(self.tokens) - 1 - self.streams * self.steps * self.length
        return random.Random(f"pass {self.seed} {number}").randint(0, spare)

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        number, position = divmod(step, self.steps)
        rows = range(self.streams)[part.of(self.streams)]
        first = self.begin(number) + position * self.length
        starts = [first + row * self.steps * self.length for row in rows]
        return segment(self.tokens, starts, [self.length] * len(starts), position == 0)


def segment(
    tokens: TokenSequence, starts: Sequence[int], lengths: Sequence[int], begins: bool
) -> Batch:
    """Return inputs and targets (rows, longest), each target the token after its input.

    Shorter rows are padded with token 0, whose target is -1.
    """
    longest = max(lengths)
    inputs = torch.zeros(len(starts), longest, dtype=torch.int64)
    targets = torch.full((len(starts), longest), -1, dtype=torch.int64)
    for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        if length:
            text = tokens[start : start + length + 1]
            inputs[row, :length], targets[row, :length] = text[:-1], text[1:]
    return Batch(inputs, targets, begins)
