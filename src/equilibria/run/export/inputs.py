"""The inputs of a task as they were before it prepared them, and what it does to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor, nn

from equilibria.run.export.errors import ExportError
from equilibria.run.tasks import Task
from equilibria.run.tasks.base import SampleTask, known
from equilibria.run.tasks.feed import Indexed, PreparedSamples, Statistics

__all__ = ["Pair", "Prepared", "pairs", "preparation"]


class Pair(NamedTuple):
    """A batch twice: for the exported file, and for the model."""

    raw: tuple[Tensor, ...]
    """Inputs of the file: samples, and lengths where sequences differ in them."""
    inputs: Any
    """What the task gives to the model."""
    targets: Any


class Prepared(nn.Module):
    """What a task does to its inputs, by statistics of the training data.

    Args:
        statistics: of the task, whose `apply` it is.
    """

    def __init__(self, statistics: Statistics) -> None:
        super().__init__()
        self.statistics = statistics

    def forward(self, x: Tensor) -> Tensor:
        """Return the samples as the model is to see them."""
        return self.statistics.apply(x)


def preparation(task: Task) -> nn.Module | None:
    """Return what a task does to its inputs; None for nothing."""
    samples = _samples(task, task.eval_split)
    return Prepared(samples.statistics) if isinstance(samples, PreparedSamples) else None


def pairs(task: Task, split: str, batch_size: int, count: int | None = None) -> Iterator[Pair]:
    """Go through a split once.

    Args:
        task: whose samples they are.
        split: one of its splits.
        batch_size: samples of a batch.
        count: of the first samples, to take no more; None for all.

    Raises:
        ExportError: the task has no such split, no separate samples, or none in the split.
    """
    samples = _samples(task, split)
    raw = samples.raw if isinstance(samples, PreparedSamples) else samples
    stop = len(samples) if count is None else min(count, len(samples))
    if stop == 0:
        raise ExportError(f"the {split} split is empty: there is nothing to compare on")
    for start in range(0, stop, batch_size):
        place = slice(start, min(start + batch_size, stop))
        inputs, targets = samples[place]
        given, _ = raw[place]
        yield Pair(given if isinstance(given, tuple) else (given,), inputs, targets)


def _samples(task: Task, split: str) -> Indexed:
    if not isinstance(task, SampleTask):
        raise ExportError(
            f"the task {type(task).__name__} has no separate samples to check a file on: tasks of "
            "classification can be exported"
        )
    try:
        return task.samples[known(task, split)]
    except ValueError as error:
        raise ExportError(str(error)) from None
