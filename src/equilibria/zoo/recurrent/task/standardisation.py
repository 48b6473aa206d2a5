"""Signals with mean 0 and deviation 1 in each channel."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equilibria.zoo.io.sequences import SequenceSamples

# Sequences that are added up at once.
_BLOCK = 512


@dataclass(frozen=True)
class ChannelStatistics:
    """Mean and standard deviation of each channel, over all steps of some sequences.

    A channel that is constant has deviation 1: it is moved to 0 and left there.

    Attributes:
        mean: of each channel.
        deviation: of each channel.
        compress: c of asinh(x / c) / asinh(1 / c), which standardised signals x are then put
            through: linear well below c, logarithmic above, and 1 at 1; None to leave them.
    """

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    compress: float | None = None

    @classmethod
    def of(cls, sequences: SequenceSamples, compress: float | None = None) -> ChannelStatistics:
        """Return the statistics of sequences, in float64, without what follows their ends."""
        count, total, squares, first = 0, 0.0, 0.0, None
        for start in range(0, len(sequences), _BLOCK):
            inputs, _ = sequences[slice(start, min(start + _BLOCK, len(sequences)))]
            x, lengths = inputs if isinstance(inputs, tuple) else (inputs, None)
            x = steps(x.double(), lengths)
            first = x[0] if first is None else first  # differences from it are exactly 0 if all are
            count += len(x)
            total = total + (x - first).sum(0)
            squares = squares + (x - first).square().sum(0)
        assert first is not None and isinstance(total, Tensor) and isinstance(squares, Tensor)
        mean = total / count
        deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
        deviation[deviation == 0] = 1.0
        return cls(tuple((mean + first).tolist()), tuple(deviation.tolist()), compress)

    def apply(self, x: Tensor) -> Tensor:
        """Return signals (..., channels) less the mean, over the deviation, and compressed.

        The mean is subtracted in the signals' own precision; the result is float32.
        """
        mean, deviation = (
            torch.tensor(each, dtype=x.dtype, device=x.device)
            for each in (self.mean, self.deviation)
        )
        x = ((x - mean) / deviation).float()
        return x if self.compress is None else compressed(x, self.compress)


def compressed(x: Tensor, scale: float) -> Tensor:
    """Return asinh(x / scale) / asinh(1 / scale)."""
    return torch.asinh(x / scale) / math.asinh(1 / scale)


def steps(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the steps (count, channels) of sequences (batch, time, channels), without padding."""
    if lengths is None:
        return x.flatten(0, 1)
    return x[torch.arange(x.shape[1]) < lengths[:, None]]


@dataclass(frozen=True)
class Standardised:
    """Sequences whose signals are standardised as they are given out."""

    sequences: SequenceSamples
    statistics: ChannelStatistics

    @property
    def raw(self) -> SequenceSamples:
        """The sequences that are not standardised."""
        return self.sequences

    @property
    def targets(self) -> Tensor:
        """Their targets, (count, ...)."""
        return self.sequences.targets

    @property
    def groups(self) -> Tensor | None:
        """Who or what they were recorded from, (count,)."""
        return self.sequences.groups

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: slice | Tensor) -> tuple[Any, Tensor]:
        inputs, targets = self.sequences[index]
        if not isinstance(inputs, tuple):
            return self.statistics.apply(inputs), targets
        x, lengths = inputs
        there = torch.arange(x.shape[1]) < lengths[:, None]
        return (self.statistics.apply(x) * there[..., None], lengths), targets

    def select(self, index: Tensor) -> Standardised:
        """Return the sequences at some places."""
        return Standardised(self.sequences.select(index), self.statistics)
