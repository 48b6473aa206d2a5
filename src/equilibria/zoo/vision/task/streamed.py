"""Batches of images from shards, decoded while the model learns from the batch before."""

from __future__ import annotations

import random

import torch
from typing_extensions import override

from equilibria.run.tasks.feed import WHOLE, Batch, Feed, Part
from equilibria.run.tasks.normalisation import Statistics
from equilibria.zoo.io import crops
from equilibria.zoo.io.ahead import Ahead
from equilibria.zoo.vision.data.shards.images import ShardImages
from equilibria.zoo.vision.task.lanes import Lanes, usual

__all__ = ["StreamedImages"]


class StreamedImages(Feed):
    """Images from shards, in the order of `Lanes`, each a random part of it if that is asked for.

    Args:
        images: what to learn from.
        batch_size: images a batch, of all processes together.
        seed: of the orders and the parts.
        lanes: parts that are read side by side; None for `usual`.
        crop: minimum share of an image's area that is shown; None for what `images` show.
        statistics: of normalised images; None for pixels in [0, 1].

    Raises:
        ValueError: the images do not fill one batch, or the lanes do not divide it.
    """

    def __init__(
        self,
        images: ShardImages,
        batch_size: int,
        seed: int,
        *,
        lanes: int | None = None,
        crop: float | None = None,
        statistics: Statistics | None = None,
    ) -> None:
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.crop, self.statistics = crop, statistics
        lanes = usual(batch_size, len(images.shards)) if lanes is None else lanes
        self.lanes = Lanes(images.shards, batch_size, seed, lanes)
        self.steps = self.lanes.steps
        self._ahead = Ahead(self._made)

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        """Return the batch of `step`, and begin to make the next.

        Raises:
            DataError: a shard cannot be read, or a sample is no image with its class.
        """
        return self._ahead.batch(step, part)

    def _made(self, step: int, part: Part) -> Batch:
        drawn = None
        if self.crop is not None:
            # Drawn for the whole batch: a function of seed and step, on any number of processes.
            seed = random.Random(f"shards {self.seed} {step}").getrandbits(63)
            numbers = crops.draw(self.batch_size, torch.Generator().manual_seed(seed))
            drawn = numbers[part.of(self.batch_size)]
        samples = self.lanes.samples(step, part)
        images, targets = self.images.decoded(samples, drawn, self.crop or 1.0)
        inputs = images / 255
        if self.statistics is not None:
            inputs = self.statistics.apply(inputs)
        return Batch(inputs, targets)
