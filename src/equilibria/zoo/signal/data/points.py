"""Coordinates of a grid, made a part at a time: a picture of any size needs no list of all."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

__all__ = ["Points"]


@dataclass(frozen=True)
class Points:
    """The points of a grid, in row-major order.

    Attributes:
        axes: Coordinates along each axis, float64, ``(count,)`` each.
        dtype: Of the points that are given out.
    """

    axes: tuple[Tensor, ...] = field(repr=False)
    dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> tuple[int, ...]:
        """Points along each axis."""
        return tuple(len(axis) for axis in self.axes)

    def __len__(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, index: slice | Tensor) -> Tensor:
        """Coordinates of the points at some places of the row-major order, ``(count, axes)``.

        Args:
            index: A slice, or places from 0 to ``len(self) - 1``, ``(count,)``.

        Raises:
            IndexError: If a place is outside.
        """
        if isinstance(index, slice):
            places = torch.arange(*index.indices(len(self)))
        else:
            places = index.to("cpu", torch.int64)
            if len(places) and not 0 <= int(places.min()) <= int(places.max()) < len(self):
                raise IndexError(
                    f"places {int(places.min())} to {int(places.max())} of {len(self)} points: "
                    f"expected 0 to {len(self) - 1}"
                )
        parts = torch.unravel_index(places, self.shape)
        columns = [axis[part] for axis, part in zip(self.axes, parts, strict=True)]
        return torch.stack(columns, 1).to(self.dtype)

    def chunks(self, size: int) -> Iterator[Tensor]:
        """Go through all points, `size` at a time; the last chunk may be smaller.

        Raises:
            ValueError: If `size` is below one.
        """
        if size < 1:
            raise ValueError(f"a chunk of {size} points: give a size of at least 1")
        for start in range(0, len(self), size):
            yield self[start : start + size]
