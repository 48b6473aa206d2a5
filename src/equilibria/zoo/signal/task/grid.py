"""Images, sounds and films: every sample of a grid is learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.run.models import Model
from equilibria.run.tasks.base import SampleTask
from equilibria.run.tasks.feed import WHOLE, Batch, Feed, Order, Part
from equilibria.zoo.signal.data import Points, Signal
from equilibria.zoo.signal.data.signal import checksum_of
from equilibria.zoo.signal.model import gradient
from equilibria.zoo.signal.task.fitting import (
    SignalTask,
    deviations,
    errors,
    psnr,
    psnr_up_to_constant,
)

_SAID = {
    "image": " from black to white, of values cut to that range.",
    "film": " from black to white, of values cut to that range; the mean of that of the frames.",
    "sound": ", whose peak is the largest number of a WAV file.",
}


@dataclass(frozen=True)
class _Samples:
    """Samples of a signal: their points, and what is known there.

    Args:
        points: of the grid.
        known: tensors by name, (samples of the grid, ...); what a loss and metrics take.
        places: which of the grid; None for all.
    """

    points: Points
    known: Mapping[str, Tensor]
    places: Tensor | None = None

    def __len__(self) -> int:
        return len(self.points) if self.places is None else len(self.places)

    def __getitem__(self, index: slice | Tensor, /) -> tuple[Tensor, dict[str, Tensor]]:
        index = index if self.places is None else self.places[index]
        inputs = self.points[index]
        known = {name: each[index] for name, each in self.known.items()}
        # Slopes are taken where the network is asked.
        return inputs, {**known, "points": inputs} if "slopes" in known else known


class GridTask(SignalTask, SampleTask):
    """An image, a sound or a film, whose samples are learned by their coordinates.

    Inputs are coordinates (points, axes); targets are a dictionary: `values` (points, channels),
    and `frame`, int64 (points,), of films the frame of each; where an image is learned from its
    gradient also `slopes` (points, channels, axes), what it changes by from one pixel to the next,
    and `points`.

    Args:
        signal: what is learned.
        title: what tables call it.
        split: "whole" or "quarter", see `SignalRepresentation`.
        fit: "values" or "gradient", likewise.

    Raises:
        ValueError: the signal is no image, and a quarter or the gradient is asked for.
    """

    def __init__(
        self, signal: Signal, title: str, *, split: str = "whole", fit: str = "values"
    ) -> None:
        field = signal.field
        self.signal, self.split, self.fit = signal, split, fit
        self.held_out = split == "quarter"
        film = field.kind == "film"
        self.frames = field.shape[0] if film else 1
        size = math.prod(field.shape) // self.frames
        known = {
            "values": signal.targets,
            "frame": torch.arange(self.frames).repeat_interleave(size),
        }
        self.spacing = torch.tensor([2 / (count - 1) for count in field.shape])
        if fit == "gradient":
            known["slopes"] = _slopes(signal)
        train, test = signal.quarters() if self.held_out else (None, None)
        points = signal.points
        super().__init__(
            {"train": _Samples(points, known, train), "test": _Samples(points, known, test)},
            checksum_of((signal.name, field, signal.values)),
        )
        self.source = title
        self.clip = field.kind != "sound"
        peak = 2.0 if self.clip else 2 / (field.high - field.low)
        if fit == "gradient":
            self.metrics = (psnr_up_to_constant(peak),)
            self.refused = (
                "fit is gradient: the derivative of a signal is that of its equilibrium, which one "
                "evaluation is not; set reuse to false"
            )
            self.early = False
        else:
            self.metrics = (psnr(peak, _SAID[field.kind]),)
            self.numbered = len(self.samples["train"])

    @override
    def feed(self, batch_size: int, seed: int) -> Feed:
        return _Drawn(self.samples["train"], batch_size, seed)

    @override
    def task_for_doctor(self) -> GridTask:
        """Return the task of learning the values: the loss of a gradient has solves of its own."""
        return self if self.early else GridTask(self.signal, self.source, split=self.split)

    @override
    def units(self, targets: Mapping[str, Tensor]) -> int:
        return len(targets["values"])

    @override
    def loss(self, model: Model, output: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        if self.fit == "gradient":
            x = targets["points"].detach()
            # In eval mode nobody differentiates it.
            slopes = gradient(model, x, create_graph=torch.is_grad_enabled())
            apart = slopes * self.spacing.to(slopes) - targets["slopes"]
            # The constant is free, and its gradient 0: several processes wait for that of each
            # parameter.
            free: Any = model
            return apart.square().mean((1, 2)).sum() + 0.0 * free.head.bias.sum()
        return (output - targets["values"]).square().mean(1).sum()

    @override
    def sums(
        self, model: Model, output: Tensor, targets: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        if self.fit == "gradient":
            return deviations(output, targets["values"])
        return errors(output, targets["values"], targets["frame"], self.frames, self.clip)


class _Drawn(Feed):
    """Samples in an order of their own in each pass; where a batch has all of them, as they are."""

    def __init__(self, samples: Any, batch_size: int, seed: int) -> None:
        self.samples, self.order = samples, Order(len(samples), batch_size, seed)
        self.steps = self.order.steps
        self._all: Batch | None = None

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        if self.order.batch_size < self.order.count:
            places = self.order.places(step, part)
            return Batch.of(self.samples, places)._replace(numbers=places)
        if self._all is None:
            self._all = Batch.of(self.samples, slice(0, self.order.count))
        if part.count == 1:
            return self._all
        mine = part.of(self.order.count)
        places = torch.arange(mine.start, mine.stop)
        return Batch.of(self.samples, mine)._replace(numbers=places)


def _slopes(signal: Signal) -> Tensor:
    """Return what an image changes by from one pixel to the next, (pixels, channels, 2).

    Central differences, one-sided at the edges.

    Raises:
        ValueError: it is no image.
    """
    if signal.field.kind != "image":
        raise ValueError(
            f"fit is gradient, and {signal.name} is a {signal.field.kind}: it is for images"
        )
    found = torch.gradient(signal.values, dim=(0, 1))
    return torch.stack([each.reshape(-1, signal.field.channels) for each in found], 2)
