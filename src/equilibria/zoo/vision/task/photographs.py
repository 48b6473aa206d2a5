"""Batches of images that are decoded while the model learns from the batch before."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import override

from equilibria.run.tasks.feed import Batch, Part
from equilibria.run.tasks.normalisation import Statistics
from equilibria.zoo.io import crops
from equilibria.zoo.io.ahead import AheadFeed
from equilibria.zoo.vision.data.images import ImageFiles


class Photographs(AheadFeed):
    """Images from their files, in an order of their own in each pass, each a random part of it.

    Args:
        files: what to learn from.
        batch_size: images a batch, of all processes together.
        seed: of the orders and the parts.
        crop: minimum share of an image's area that is shown; None for what the files show.
        statistics: of normalised images; None for pixels in [0, 1].

    Raises:
        ValueError: the images do not fill one batch.
    """

    stream = "crop"

    def __init__(
        self,
        files: ImageFiles,
        batch_size: int,
        seed: int,
        *,
        crop: float | None = None,
        statistics: Statistics | None = None,
    ) -> None:
        super().__init__(len(files), batch_size, seed)
        self.files, self.crop, self.statistics = files, crop, statistics

    @override
    def made(self, places: Tensor, step: int, part: Part) -> Batch:
        given: tuple[Any, ...] = ()
        if self.crop is not None:
            numbers = crops.draw(self.order.batch_size, self.generator(step))
            given = (numbers[part.of(self.order.batch_size)], self.crop)
        inputs = self.files.images(places, *given) / 255
        if self.statistics is not None:
            inputs = self.statistics.apply(inputs)
        return Batch(inputs, self.files.targets[places])
