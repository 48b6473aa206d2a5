"""Classification of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from equilibria import data
from equilibria.models import ClassifierConfig, Model, ModelConfig
from equilibria.tasks.base import TaskConfig
from equilibria.tasks.samples import SampleTask


@dataclass(frozen=True, kw_only=True)
class ImageClassification(TaskConfig):
    """Which of several classes does an image show? Trained with cross-entropy.

    Args:
        data: name of the data set.
        label_smoothing: share of a target's weight that is spread over all classes, in [0, 1).
        shift: pixels by which training images are moved at random, at most, along each side.
    """

    data: str = "digits"
    label_smoothing: float = 0.0
    shift: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.label_smoothing < 1.0:
            raise ValueError(f"label_smoothing must lie in [0, 1); got {self.label_smoothing}")
        if self.shift < 0:
            raise ValueError(f"shift must not be negative; got {self.shift}")

    @override
    def load(self, data_dir: Path | None = None) -> ClassificationTask:
        return ClassificationTask(self, data_dir)


class ClassificationTask(SampleTask):
    """Images (n, channels, height, width) with labels (n,)."""

    def __init__(self, config: ImageClassification, data_dir: Path | None) -> None:
        self.config = config
        images = data.load(config.data, data_dir)
        super().__init__({"train": images.train, "test": images.test}, images.checksum)
        self.classes = images.classes

    @override
    def complete(self, config: ModelConfig) -> ModelConfig:
        if not isinstance(config, ClassifierConfig):
            raise ValueError(f"{type(config).__name__} describes no classifier of images")
        given = (tuple(config.shape), config.classes)
        needed = (tuple(self.train.inputs.shape[1:]), self.classes)
        if given != needed:
            raise ValueError(
                f"the images of '{self.config.data}' have shape {needed[0]} and {needed[1]} "
                f"classes; set model.shape and model.classes to that (they are {given[0]} and "
                f"{given[1]})"
            )
        return config

    @override
    def augment(self, inputs: Tensor) -> Tensor:
        return shifted(inputs, self.config.shift) if self.config.shift else inputs

    @override
    def loss(self, model: Model, output: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(
            output, targets, label_smoothing=self.config.label_smoothing
        )

    @override
    def correct(self, model: Model, output: Tensor, targets: Tensor) -> Tensor:
        return output.argmax(1) == targets


def shifted(images: Tensor, most: int) -> Tensor:
    """Return images (n, channels, height, width), each moved by its own random number of pixels.

    Both numbers, down and right, are uniform from -`most` to `most`; the edge is repeated where
    nothing is left to show.
    """
    count, channels, height, width = images.shape
    padded = functional.pad(images, (most, most, most, most), mode="replicate")
    corner = torch.randint(0, 2 * most + 1, (count, 2))
    rows = corner[:, :1] + torch.arange(height)
    columns = corner[:, 1:] + torch.arange(width)
    return padded[
        torch.arange(count)[:, None, None, None],
        torch.arange(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]
