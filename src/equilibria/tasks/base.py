"""What a task gives to a trainer."""

from __future__ import annotations

import abc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from equilibria.models import Model, ModelConfig
from equilibria.tasks.feed import WHOLE, Batch, Feed, Part


class Task(abc.ABC):
    """Data with a loss and figures that judge a model.

    Attributes:
        checksum: of all the data, to tell runs on the same data from others.
        source: what the data are, as tables name them: "CIFAR-10 (JPEG copy)".
        splits: what the model can be evaluated on, "test" among them.
        judged: the one that tells how good it is after each epoch of training: "valid" where there
            is one, so that the test data stay unseen.
        unit: what is counted, in the plural: "samples", or "tokens" of a text.
        streams: whether a batch goes on where the one before ended, so that what a model carries
            over matters.
        auxiliary: weight of the mean loss of what a model reads from parts of its state, in
            training.
    """

    checksum: str
    source: str = ""
    splits: tuple[str, ...] = ("train", "test")
    judged: str = "test"
    unit: str = "samples"
    streams: bool = False
    auxiliary: float = 0.0

    @abc.abstractmethod
    def complete(self, config: ModelConfig) -> ModelConfig:
        """Return `config` with what it leaves to the data filled in.

        Raises:
            ValueError: a model of this config cannot take the data.
        """

    def model(self, config: ModelConfig, **layer: Any) -> Model:
        """Build the model that `config` describes, after a check that it fits the data.

        Raises:
            ValueError: it does not.
        """
        return self.complete(config).build(**layer)

    @abc.abstractmethod
    def feed(self, batch_size: int, seed: int) -> Feed:
        """Return the batches to learn from.

        Args:
            batch_size: rows of a batch, of all processes together.
            seed: of all that is at random in them.

        Raises:
            ValueError: the data do not fill one batch.
        """

    @abc.abstractmethod
    def batches(self, split: str, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        """Go through a split once, in its own order.

        Args:
            split: one of `splits`.
            batch_size: samples a batch on each process; or streams on all processes together.
            part: of this process.
        """

    @abc.abstractmethod
    def sample(self, split: str, count: int) -> Batch:
        """Return the first `count` samples of a split, fewer if there are not so many."""

    def augment(self, inputs: Tensor) -> Tensor:
        """Return the inputs of a training step, changed at random where the task does that."""
        return inputs

    @abc.abstractmethod
    def loss(self, model: Model, output: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, a scalar: the mean over all units of the batch.

        Args:
            model: the model whose output it is.
            output: of its prediction.
            targets: of the batch.
        """

    def units(self, targets: Tensor) -> int:
        """Return how many units a batch has, over which `loss` is a mean."""
        return len(targets)

    def correct(self, model: Model, output: Tensor, targets: Tensor) -> Tensor | None:
        """Return as bool which answers are right, of any shape; None where that tells nothing."""
        return None

    def figures(self, loss: float) -> dict[str, float]:
        """Return what a mean loss means in other units, by name."""
        return {}

    def save(self, folder: Path) -> None:  # noqa: B027 - most tasks need nothing
        """Write into a run folder what using the model without the data needs."""


@dataclass(frozen=True, kw_only=True)
class TaskConfig(abc.ABC):
    """What a recipe writes under `task`."""

    @abc.abstractmethod
    def load(self, data_dir: Path | None = None) -> Task:
        """Read the data and return the task.

        Args:
            data_dir: folder to look for data sets in, before EQUILIBRIA_DATA.
        """


def known(task: Task, split: str) -> str:
    """Return `split` if `task` has it.

    Raises:
        ValueError: it does not.
    """
    if split not in task.splits:
        raise ValueError(f"there is no split '{split}'; there are: {', '.join(task.splits)}")
    return split
