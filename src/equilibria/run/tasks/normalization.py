"""Images with mean 0 and deviation 1 in each channel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from equilibria.run.data.dataset import Samples

READ = 2_000
"""Images that the statistics are taken from where images are read from disk: spread evenly over all
of them, which lie there class by class."""

# Images that are added up at once.
_BLOCK = 500


@dataclass(frozen=True)
class PixelStatistics:
    """Mean and standard deviation of each channel, over all pixels of some images."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def of(cls, images: Samples, most: int | None = None) -> PixelStatistics:
        """Return the statistics of images; of `most`, spread evenly, where that is given and less.

        Raises:
            ValueError: all pixels of a channel are the same.
        """
        length = min(len(images), most or len(images))
        places = torch.arange(length) * len(images) // length
        return cls.of_blocks(images[block][0] for block in places.split(_BLOCK))

    @classmethod
    def of_blocks(cls, blocks: Iterable[Tensor]) -> PixelStatistics:
        """Return the statistics of blocks of images (n, channels, height, width), of any sizes.

        Raises:
            ValueError: all pixels of a channel are the same.
        """
        # Sums of differences from one pixel: they are exactly 0 where all pixels are the same.
        first: Tensor | None = None
        count, total, squares = 0, torch.zeros(1), torch.zeros(1)
        for block in blocks:
            first = block[:1, :, :1, :1].double() if first is None else first
            batch = block.double() - first
            count += batch.numel() // batch.shape[1]
            total = total + batch.sum((0, 2, 3))
            squares = squares + batch.square().sum((0, 2, 3))
        mean = total / count
        deviation = (squares / count - mean.square()).clamp(min=0).sqrt()
        assert first is not None  # there is a block
        return cls.check(tuple((mean + first.flatten()).tolist()), tuple(deviation.tolist()))

    @classmethod
    def check(cls, mean: tuple[float, ...], deviation: tuple[float, ...]) -> PixelStatistics:
        """Return statistics that images can be normalised by.

        Raises:
            ValueError: all pixels of a channel are the same.
        """
        if 0.0 in deviation:
            channel = deviation.index(0.0)
            raise ValueError(
                f"normalise needs channels that differ among pixels; channel {channel} is "
                f"{mean[channel]:g} everywhere: set task.normalize to false"
            )
        return cls(mean, deviation)

    def apply(self, images: Tensor) -> Tensor:
        """Return images (n, channels, height, width) less the mean, over the deviation."""
        mean, deviation = (
            torch.tensor(each, dtype=images.dtype, device=images.device)[:, None, None]
            for each in (self.mean, self.deviation)
        )
        return (images - mean) / deviation


@dataclass(frozen=True)
class Normalized:
    """Samples whose inputs are normalised as they are given out, by `statistics.apply`."""

    samples: Samples
    statistics: Any

    @property
    def raw(self) -> Samples:
        """The samples that are not normalised."""
        return self.samples

    @property
    def targets(self) -> Tensor:
        """Their classes, (count,)."""
        return self.samples.targets

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: slice | Tensor) -> tuple[Any, Tensor]:
        inputs, targets = self.samples[index]
        return self.statistics.apply(inputs), targets

    def select(self, index: Tensor) -> Self:
        """Return the samples at some places."""
        return replace(self, samples=self.samples.select(index))
