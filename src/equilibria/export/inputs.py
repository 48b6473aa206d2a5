"""The inputs of a task as they were before it prepared them, and what it does to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from equilibria.export.errors import ExportError
from equilibria.tasks import Task
from equilibria.tasks.base import SampleTask, known
from equilibria.tasks.normalisation import Normalised
from equilibria.tasks.standardisation import Standardised

__all__ = ["Pair", "Standardise", "pairs", "preparation"]


class Pair(NamedTuple):
    """A batch twice: for the exported file, and for the model."""

    raw: tuple[Tensor, ...]
    """Inputs of the file: samples, and lengths where sequences differ in them."""
    inputs: Any
    """What the task gives to the model."""
    targets: Any


class Standardise(nn.Module):
    """(x - mean) / deviation, by statistics of the training data."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, x: Tensor) -> Tensor:
        """Return the standardised samples."""
        return (x - self.mean) / self.deviation


def preparation(task: Task) -> nn.Module | None:
    """Return what a task does to its inputs; None for nothing."""
    samples = _samples(task, task.eval_split)
    if not isinstance(samples, Normalised | Standardised):
        return None
    found = samples.statistics
    mean, deviation = torch.tensor(found.mean), torch.tensor(found.deviation)
    if isinstance(samples, Normalised):  # channels come before height and width
        mean, deviation = mean[:, None, None], deviation[:, None, None]
    return Standardise(mean, deviation)


def pairs(task: Task, split: str, batch_size: int, count: int | None = None) -> Iterator[Pair]:
    """Go through a split once.

    Args:
        task: whose samples they are.
        split: one of its splits.
        batch_size: samples of a batch.
        count: of the first samples, to take no more; None for all.

    Raises:
        ExportError: the task has no such split, or no separate samples.
    """
    samples = _samples(task, split)
    raw: Any = samples
    if isinstance(samples, Normalised):
        raw = samples.images
    elif isinstance(samples, Standardised):
        raw = samples.sequences
    stop = len(samples) if count is None else min(count, len(samples))
    for start in range(0, stop, batch_size):
        place = slice(start, min(start + batch_size, stop))
        inputs, targets = samples[place]
        given, _ = raw[place]
        yield Pair(given if isinstance(given, tuple) else (given,), inputs, targets)


def _samples(task: Task, split: str) -> Any:
    if not isinstance(task, SampleTask):
        raise ExportError(
            f"the task {type(task).__name__} has no separate samples to check a file on: tasks of "
            "classification can be exported"
        )
    try:
        return task.samples[known(task, split)]
    except ValueError as error:
        raise ExportError(str(error)) from None
