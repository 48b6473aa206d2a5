"""What a task gives to a trainer."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from equilibria.data import Split
from equilibria.models import EquilibriumModel, ModelConfig


class Task(abc.ABC):
    """Data with a loss and a metric.

    Attributes:
        train: samples to learn from.
        test: samples to be judged by.
        checksum: of all samples and targets, to tell runs on the same data from others.
    """

    train: Split
    test: Split
    checksum: str

    @abc.abstractmethod
    def check(self, config: ModelConfig) -> None:
        """Raise ValueError if a model of this `config` cannot take the data."""

    def augment(self, inputs: Tensor) -> Tensor:
        """Return the inputs of a training step, changed at random where the task does that."""
        return inputs

    @abc.abstractmethod
    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, a scalar: the mean over the batch."""

    @abc.abstractmethod
    def correct(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return (batch,) bool: which samples the output gets right."""

    def model(self, config: ModelConfig, **layer: Any) -> EquilibriumModel:
        """Build the model that `config` describes, after a check that it fits the data.

        Raises:
            ValueError: it does not.
        """
        self.check(config)
        return config.build(**layer)


@dataclass(frozen=True, kw_only=True)
class TaskConfig(abc.ABC):
    """What a recipe writes under `task`."""

    @abc.abstractmethod
    def load(self, data_dir: Path | None = None) -> Task:
        """Read the data and return the task.

        Args:
            data_dir: folder to look for data sets in, before EQUILIBRIA_DATA.
        """
