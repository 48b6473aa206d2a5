"""What a task gives to a trainer."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from equilibria.models import EquilibriumModel, ModelConfig


@dataclass(frozen=True)
class Samples:
    """Inputs with their targets, in memory."""

    inputs: Tensor
    """(samples, ...)."""
    targets: Tensor
    """(samples, ...)."""

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets) or len(self.inputs) == 0:
            raise ValueError(
                f"expected as many targets as inputs and at least one; got {len(self.targets)} "
                f"targets and {len(self.inputs)} inputs"
            )

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: Tensor | slice) -> tuple[Tensor, Tensor]:
        """Return (inputs, targets) of the samples that `index` names."""
        return self.inputs[index], self.targets[index]


class Task(abc.ABC):
    """Data with a loss and a metric.

    Attributes:
        train: samples to learn from.
        test: samples to be judged by.
    """

    train: Samples
    test: Samples

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
