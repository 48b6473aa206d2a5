"""Signals of sequences: how they are standardised, and statistics of windows for a linear model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.run.tasks.normalization import Normalized
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
        return x if self.compress is None else compress_signal(x, self.compress)


def compress_signal(x: Tensor, scale: float) -> Tensor:
    """Return asinh(x / scale) / asinh(1 / scale)."""
    return torch.asinh(x / scale) / math.asinh(1 / scale)


def steps(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return the steps (count, channels) of sequences (batch, time, channels), without padding."""
    if lengths is None:
        return x.flatten(0, 1)
    return x[torch.arange(x.shape[1]) < lengths[:, None]]


@dataclass(frozen=True)
class Standardized(Normalized):
    """Sequences whose signals are standardised as they are given out."""

    samples: SequenceSamples
    statistics: ChannelStatistics

    @property
    def groups(self) -> Tensor | None:
        """Who or what they were recorded from, (count,)."""
        return self.samples.groups

    @override
    def __getitem__(self, index: slice | Tensor) -> tuple[Any, Tensor]:
        inputs, targets = self.samples[index]
        if not isinstance(inputs, tuple):
            return self.statistics.apply(inputs), targets
        x, lengths = inputs
        there = torch.arange(x.shape[1]) < lengths[:, None]
        return (self.statistics.apply(x) * there[..., None], lengths), targets


WINDOWS = 4
"""Parts of a sequence, of equal length, whose statistics a linear model is given."""


def read_windows(inputs: Any) -> Tensor:
    """Return statistics of the windows of sequences, (count, features): of each channel the mean,
    the standard deviation, the least and the greatest value, and the mean of the absolute steps.

    Args:
        inputs: signals (count, time, channels), or a pair of them and their lengths (count,).
    """
    x, lengths = inputs if isinstance(inputs, tuple) else (inputs, None)
    if lengths is None:
        return _describe(x)
    return torch.cat([_describe(x[k : k + 1, :n]) for k, n in enumerate(lengths.tolist())])


def _describe(x: Tensor) -> Tensor:
    """The same, of sequences of equal length."""
    found, time = [], x.shape[1]
    for k in range(WINDOWS):
        begin = min(k * time // WINDOWS, time - 1)
        part = x[:, begin : max(begin + 1, (k + 1) * time // WINDOWS)]
        moved = part.diff(dim=1).abs().sum(1) / max(1, part.shape[1] - 1)
        found += [part.mean(1), part.std(1, correction=0), part.amin(1), part.amax(1), moved]
    return torch.cat(found, 1)
