"""Pairs of images with the flow between them, read or made when they are asked for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

from equilibria.run.data.errors import DataError

__all__ = ["FlowSet", "Pair", "Pairs", "Size", "stacked"]

Size = tuple[int, int]
"""Height and width, in pixels."""


class Pair(NamedTuple):
    """Two images and the flow of the first; those of a batch have one more axis, in front."""

    first: Tensor
    """RGB, uint8, ``(3, height, width)``."""
    second: Tensor
    """RGB, uint8, ``(3, height, width)``."""
    flow: Tensor
    """In pixels, to the right and downwards, float32, ``(2, height, width)``."""
    valid: Tensor
    """Where the flow is known, bool, ``(height, width)``."""


class Pairs(Protocol):
    """Pairs in an order that never changes."""

    def __len__(self) -> int: ...

    def size(self, place: int) -> Size:
        """Height and width of a pair, without reading its pixels."""
        ...

    def pair(self, place: int) -> Pair:
        """Read or make one pair.

        Raises:
            DataError: If a file cannot be read or is damaged, or sizes differ; the message names
                the file.
        """
        ...

    def batch(self, places: Tensor) -> Pair:
        """Read or make the pairs at some places, ``(count,)``, which have one size.

        Raises:
            DataError: As `pair`, and if the pairs differ in size.
        """
        ...

    def select(self, index: Tensor) -> Self:
        """The pairs at some places, in that order."""
        ...


@dataclass(frozen=True, kw_only=True)
class FlowSet:
    """Pairs of images with the flow between them, to learn from and to test on.

    Attributes:
        title: Its name in tables.
        train: Training pairs; None if there are none.
        test: Test pairs.
        valid: Validation pairs; None if there are none.
        seen: Whether the test pairs are training pairs too, as of data sets whose other flow was
            never published: figures of a model that has learned from them go in brackets.
        checksum: ``sha256:...`` over what decides the pairs; of files, over names, lengths and
            times of change.
    """

    title: str
    train: Pairs | None
    test: Pairs
    valid: Pairs | None = None
    seen: bool = False
    checksum: str


def stacked(pairs: Iterable[Pair]) -> Pair:
    """A batch of some pairs.

    Raises:
        DataError: If they differ in size.
    """
    every = list(pairs)
    sizes = sorted({tuple(pair.valid.shape) for pair in every})
    if len(sizes) > 1:
        (high, wide), (other_high, other_wide) = sizes[:2]
        raise DataError(
            f"pairs of one batch differ in size: {high} x {wide} and {other_high} x {other_wide} "
            "pixels (height x width); take a crop of one size, or batches of one pair"
        )
    return Pair(*(torch.stack(parts) for parts in zip(*every, strict=True)))
