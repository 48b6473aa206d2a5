"""Batches of images that are decoded while the model learns from the batch before."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.data.images import ImageFiles, crops
from equilibria.tasks.ahead import Ahead
from equilibria.tasks.feed import WHOLE, Batch, Feed, Order, Part
from equilibria.tasks.normalisation import Statistics


class Photographs(Feed):
    """Images from their files, in an order of their own in each pass, each a random part of it.

    Which part is a function of the seed and the step, as the order is: what is decoded ahead
    changes nothing, and neither do more processes.

    Args:
        files: what to learn from.
        batch_size: images a batch, of all processes together.
        seed: of the orders and the parts.
        crop: minimum share of an image's area that is shown; None for what the files show.
        statistics: of normalised images; None for pixels in [0, 1].

    Raises:
        ValueError: the images do not fill one batch.
    """

    def __init__(
        self,
        files: ImageFiles,
        batch_size: int,
        seed: int,
        *,
        crop: float | None = None,
        statistics: Statistics | None = None,
    ) -> None:
        self.files, self.seed, self.crop, self.statistics = files, seed, crop, statistics
        self.order = Order(len(files), batch_size, seed)
        self.steps = self.order.steps
        self._ahead = Ahead(self._decoded)

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        """Return the batch of `step`, and begin to decode the next.

        Raises:
            DataError: a file cannot be read or is damaged; the message names it.
        """
        return self._ahead.batch(step, part)

    def _decoded(self, step: int, part: Part) -> Batch:
        places = self.order.places(step, part)
        given: tuple[Any, ...] = ()
        if self.crop is not None:
            given = (self._drawn(step)[part.of(self.order.batch_size)], self.crop)
        inputs = self.files.images(places, *given) / 255
        if self.statistics is not None:
            inputs = self.statistics.apply(inputs)
        return Batch(inputs, self.files.targets[places])

    def _drawn(self, step: int) -> Tensor:
        """The numbers that decide what is shown of the images of a batch, all processes'."""
        seed = random.Random(f"crop {self.seed} {step}").getrandbits(63)
        return crops.draw(self.order.batch_size, torch.Generator().manual_seed(seed))
