"""Images in shards, with a class each: decoded as they are streamed."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from equilibria.run.data.dataset import Split
from equilibria.zoo.io import decode
from equilibria.zoo.io.view import View
from equilibria.zoo.vision.data.shards.archive import Raw
from equilibria.zoo.vision.data.shards.index import Shard
from equilibria.zoo.vision.data.shards.sample import image_of, name_of, number_of
from equilibria.zoo.vision.data.shards.shelf import Shelf

__all__ = ["ShardImages"]


@dataclass(frozen=True, kw_only=True, eq=False)
class ShardImages:
    """Images of some shards, in their order: those that lie together are best asked for together.

    The shard of the latest ones and the next one are held in memory. Only one thread may ask.

    Attributes:
        shards: Where they are.
        labels: Names of their classes.
        view: How images are shown.
        numbers: What the targets call the classes, in the order of `labels`; None for 0, 1, ...
    """

    shards: tuple[Shard, ...]
    labels: tuple[str, ...]
    view: View
    numbers: tuple[int, ...] | None = None
    _shelf: Shelf = field(init=False, repr=False)
    _ends: list[int] = field(init=False, repr=False)
    _times: Iterator[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shelf", Shelf(self.shards))
        ends = list(itertools.accumulate(shard.samples for shard in self.shards))
        object.__setattr__(self, "_ends", ends)
        object.__setattr__(self, "_times", itertools.count())

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Images, float32 in [0, 1], and targets of the samples at some positions.

        Raises:
            DataError: If a shard cannot be read, or a sample is no image with its class.
        """
        images, targets = self._uint8(index)
        return images / 255, targets

    def first(self, count: int) -> Split:
        """The first samples, fewer if there are not so many, in memory."""
        return Split(*self._uint8(slice(0, min(count, len(self)))))

    def numbered(self, numbers: Sequence[int]) -> ShardImages:
        """The same images with other numbers of their classes."""
        return replace(self, numbers=tuple(numbers))

    def decoded(
        self,
        samples: Sequence[tuple[str, Raw]],
        drawn: Tensor | None = None,
        smallest: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """Decode samples, several at once.

        Args:
            samples: The address of the shard of each, and its files.
            drawn: Numbers that decide which part of each image is shown, of `crops.draw`; None for
                its middle.
            smallest: Least share of an image's area that such a part has.

        Returns:
            Images, uint8 ``(count, *shape)``, and targets, int64 ``(count,)``.

        Raises:
            DataError: If one is no image with its class; the message names it and its shard.
        """
        rows = [None] * len(samples) if drawn is None else drawn.unbind()
        places = {label: place for place, label in enumerate(self.labels)}
        images = torch.empty(len(samples), *self.view.shape, dtype=torch.uint8)
        targets = torch.empty(len(samples), dtype=torch.int64)

        def one(k: int) -> None:
            url, sample = samples[k]
            number = number_of(sample, url, self.labels, places)
            targets[k] = number if self.numbers is None else self.numbers[number]
            name = name_of(sample, url)
            content = image_of(sample, url)
            images[k] = torch.from_numpy(self.view.pixels(content, name, rows[k], smallest))

        for _ in decode.in_threads(one, range(len(samples))):
            pass
        return images, targets

    def _uint8(self, index: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Images and targets of the samples at some positions, shard by shard."""
        places = torch.arange(len(self))[index] if isinstance(index, slice) else index
        images = torch.empty(len(places), *self.view.shape, dtype=torch.uint8)
        targets = torch.empty(len(places), dtype=torch.int64)
        rows: dict[int, list[int]] = {}
        for row, place in enumerate(places.tolist()):
            rows.setdefault(bisect.bisect_right(self._ends, place), []).append(row)
        numbers = sorted(rows)
        # What is asked for now is likely to go on in the next shard.
        following = [*numbers[1:], *(n + 1 for n in numbers[-1:] if n + 1 < len(self.shards))]
        for number, soon in itertools.zip_longest(numbers, following):
            mine = rows[number]
            ahead = () if soon is None else (soon,)
            held = self._shelf.take((number,), ahead, next(self._times))[number]
            url, start = self.shards[number].url, self._ends[number] - len(held)
            images[mine], targets[mine] = self.decoded(
                [(url, held[int(places[row]) - start]) for row in mine]
            )
        return images, targets
