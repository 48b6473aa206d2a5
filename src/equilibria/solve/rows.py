"""The vector space the solvers work in.

A state is held as *rows*: one matrix `(samples, entries)` for each of its leaves. The leaves are
never joined into one; what a solver needs (norms, inner products, combinations of earlier vectors)
is summed over them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from equilibria.solve import linalg, private
from equilibria.solve.grouping import Coupled, Groups

Rows = list[Tensor]

FIRST_ROOM = 8
"""Vectors that a store makes room for at first, at most."""


@dataclass(frozen=True)
class Layout:
    """How leaves `(batch, ...)` become rows and back, keeping each leaf's memory format.

    Attributes:
        shapes: shape of each leaf without its batch axis.
        orders: order of the axes in memory, the batch first; a channels-last image keeps its
            channels last, so that its row is a view.
        coupled: the whole batch is one sample: a single row; or the rows of each group are.
        unit: `(samples, 1)`, powers of two that the rows are in units of; None: 1.
    """

    shapes: tuple[tuple[int, ...], ...]
    orders: tuple[tuple[int, ...], ...]
    coupled: Coupled = False
    unit: Tensor | None = None

    @classmethod
    def of(cls, leaves: Sequence[Tensor], coupled: Coupled = False) -> Layout:
        if coupled is True:
            leaves = [leaf.unsqueeze(0) for leaf in leaves]
        return cls(
            tuple(tuple(leaf.shape[1:]) for leaf in leaves),
            tuple(_memory_order(leaf) for leaf in leaves),
            coupled,
        )

    def in_units_of(self, *states: Sequence[Tensor]) -> Layout:
        """The layout with rows in units in which the squares of these states are numbers."""
        each = [self._rows([x.detach() for x in leaves]) for leaves in states]
        size = length(each[0])
        for rows in each[1:]:
            size = torch.maximum(size, length(rows))
        # Most often all are well within the range, which their lengths tell.
        if private.every(torch.clamp(size, 1 / LARGEST, LARGEST) == size):
            return self
        unit = unit_of([row for rows in each for row in rows])
        return self if unit is None else replace(self, unit=unit)

    def select(self, index: Tensor) -> Layout:
        """The layout of the samples named by `index`."""
        unit = self.unit
        return self if unit is None else replace(self, unit=unit.index_select(0, index))

    @cached_property
    def flat(self) -> bool:
        """Are the leaves rows as they are, but for units?"""
        return self.coupled is False and all(len(shape) == 1 for shape in self.shapes)

    def rows(self, leaves: Sequence[Tensor]) -> Rows:
        if self.unit is not None:
            return [row / self.unit for row in self._rows(leaves)]
        return self._rows(leaves)

    def leaves(self, rows: Rows) -> list[Tensor]:
        return self._leaves(rows if self.unit is None else [row * self.unit for row in rows])

    def _rows(self, leaves: Sequence[Tensor]) -> Rows:
        if self.flat:
            return list(leaves)
        if isinstance(self.coupled, Groups):
            return [self.coupled.row(leaf) for leaf in leaves]
        if self.coupled:
            leaves = [leaf.unsqueeze(0) for leaf in leaves]
        return [
            leaf.permute(order).reshape(leaf.shape[0], -1)
            for leaf, order in zip(leaves, self.orders, strict=True)
        ]

    def _leaves(self, rows: Rows) -> list[Tensor]:
        if self.flat:
            return list(rows)
        if isinstance(self.coupled, Groups):
            pairs = zip(rows, self.shapes, strict=True)
            return [self.coupled.leaf(row, shape) for row, shape in pairs]
        out: list[Tensor] = []
        for row, shape, order in zip(rows, self.shapes, self.orders, strict=True):
            full = (row.shape[0], *shape)
            inverse = sorted(range(len(order)), key=order.__getitem__)
            leaf = row.reshape([full[axis] for axis in order]).permute(inverse)
            out.append(leaf.squeeze(0) if self.coupled else leaf)
        return out

    def norm(self, rows: Rows) -> Tensor:
        """RMS norm of each sample over its own entries, all leaves together: `(samples,)`."""
        filled = self.filled
        return norm(rows) if filled is None else norm(rows) / filled

    @property
    def filled(self) -> Tensor | None:
        """The root of the share of its row that each sample fills `(samples,)`; None: it does."""
        if not isinstance(self.coupled, Groups) or self.coupled.slots is None:
            return None
        return (self.coupled.sizes / self.coupled.longest).sqrt()

    @property
    def share(self) -> Tensor | None:
        """What a length in the units of the state is multiplied by, `(samples,)`, to be one of the
        rows, of which a sample may fill a share only; None: 1."""
        filled = self.filled
        if self.unit is None:
            return filled
        return self.unit.squeeze(1).reciprocal() * (1.0 if filled is None else filled)

    @property
    def unit_share(self) -> Tensor | None:
        """The same for a part of a row that a sample fills."""
        return None if self.unit is None else self.unit.squeeze(1).reciprocal()

    def parts(self, rows: Rows) -> Rows | None:
        """The rows of the state that make up each sample, `(samples, rows, entries)` a leaf; None
        where a sample is one of them."""
        if self.coupled is False:
            return None
        if isinstance(self.coupled, Groups):
            return [row.reshape(row.shape[0], self.coupled.longest, -1) for row in rows]
        return [leaf.reshape(1, leaf.shape[0], -1) for leaf in self._leaves(rows)]


def _memory_order(leaf: Tensor) -> tuple[int, ...]:
    strides = leaf.stride()
    inner = sorted(range(1, leaf.dim()), key=lambda axis: -strides[axis])
    return (0, *inner)


def entries(rows: Rows) -> int:
    """Entries of one sample, all leaves together."""
    return sum(row.shape[1] for row in rows)


def length(rows: Rows) -> Tensor:
    """Euclidean length of each sample over all its entries, all leaves together: `(samples,)`."""
    if len(rows) == 1:
        return linalg.lengths(rows[0])
    return linalg.lengths(torch.stack([linalg.lengths(row) for row in rows], dim=1))


def norm(rows: Rows) -> Tensor:
    """RMS norm of each sample over all its entries, all leaves together: `(samples,)`."""
    return length(rows) / math.sqrt(entries(rows))


LARGEST = 2.0**30


def unit_of(rows: Rows) -> Tensor | None:
    """Powers of two `(samples, 1)` near the largest entry of each sample; None where no entry is so
    large, or so small, that products of rows could leave the range of numbers."""
    largest = largest_of(rows)
    if private.every((torch.clamp(largest, 1 / LARGEST, LARGEST) == largest) | (largest == 0)):
        return None
    usable = torch.isfinite(largest) & (largest > 0)
    exponent = torch.frexp(torch.where(usable, largest, 1.0)).exponent
    # A power of two that is a number, and so is its inverse.
    limit = int(-math.log2(torch.finfo(largest.dtype).tiny))
    exponent = exponent.clamp(1 - limit, limit - 1)
    return torch.ldexp(torch.ones_like(largest), exponent).unsqueeze(1)


def largest_of(rows: Rows) -> Tensor:
    """The largest absolute entry of each sample, all leaves together: `(samples,)`."""
    each = [linalg.largest(row) for row in rows]
    return each[0] if len(each) == 1 else torch.stack(each).amax(dim=0)


def scaled_ratio(a: Rows, b: Rows) -> Tensor:
    """||a|| / ||b|| of each sample, where squares would be rounded to nothing; 0 / 0 is 0."""
    a, b = ([row.detach() for row in rows] for rows in (a, b))
    largest = largest_of([*a, *b])
    unit = torch.where(largest > 0, largest, 1.0).unsqueeze(1)
    size, scale = (length([row / unit for row in rows]) for rows in (a, b))
    return torch.where(size == 0, 0.0, size / scale)


def relative_by_leaf(residual: Rows, f: Rows) -> Tensor:
    """||f - z|| / ||f|| of each leaf by itself: `(leaves, samples)`."""
    tiny = torch.finfo(f[0].dtype).tiny
    return torch.stack(
        [norm([g]) / (norm([image]) + tiny) for g, image in zip(residual, f, strict=True)]
    )


def dot(a: Rows, b: Rows) -> Tensor:
    """Inner product of each sample: `(samples,)`."""
    return sum_of([linalg.inner(x, y) for x, y in zip(a, b, strict=True)])


def subtract(a: Rows, b: Rows) -> Rows:
    return [x - y for x, y in zip(a, b, strict=True)]


def add_scaled(a: Rows, scale: Tensor | float, b: Rows) -> Rows:
    """a + scale b, with one scale a sample or one for all."""
    if isinstance(scale, Tensor):
        column = scale.unsqueeze(1)
        return [torch.addcmul(x, column, y) for x, y in zip(a, b, strict=True)]
    return [torch.add(x, y, alpha=scale) for x, y in zip(a, b, strict=True)]


def choose(mask: Tensor, a: Rows, b: Rows) -> Rows:
    """Rows of `a` where `mask` `(samples,)` holds, else of `b`."""
    column = mask.unsqueeze(1)
    return [torch.where(column, x, y) for x, y in zip(a, b, strict=True)]


def select(rows: Rows, index: Tensor) -> Rows:
    return [row.index_select(0, index) for row in rows]


def sum_of(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


def room(count: int, capacity: int | None) -> int:
    """Vectors that a store of `count` makes room for: its capacity, halved as often as that does.

    So each growth doubles the room, and the last ends at the capacity, with half of it, and no
    more, to be copied. Where no capacity is known the doubling begins at `FIRST_ROOM`.
    """
    if capacity is None:
        return max(FIRST_ROOM, 2 * (count - 1))
    size = capacity
    while size > FIRST_ROOM and (half := (size + 1) // 2) >= count:
        size = half
    return size


class Memory:
    """Vectors of every sample, `(samples, entries)` a leaf, in numbered slots.

    The slots are rows of one buffer a leaf, which grows by doubling, up to `capacity` where that is
    known (see `room`). With `tracked` they are kept as they are, so that autograd can follow them,
    and nothing is written in place.
    """

    def __init__(self, capacity: int | None = None, tracked: bool = False) -> None:
        self.capacity = capacity
        self.tracked = tracked
        self._buffers: Rows = []
        self._kept: dict[int, Rows] = {}  # by slot; views of the buffers, unless tracked

    def put(self, slot: int, a: Rows, b: Rows | None = None, scale: float = -1.0) -> Rows:
        """Stores a + scale b, or a alone, and returns what is stored."""
        if self.tracked:
            kept = a if b is None else add_scaled(a, scale, b)
            self._kept[slot] = kept
            return kept
        if not self._buffers or slot >= self._buffers[0].shape[1]:
            self._grow(a, slot)
        places = self.at(slot)
        for i, place in enumerate(places):
            if b is None:
                place.copy_(a[i])
            elif torch.compiler.is_compiling():  # which cannot write to a view, and fuses the two
                place.copy_(torch.add(a[i], b[i], alpha=scale))
            elif scale == -1.0:
                torch.sub(a[i], b[i], out=place)
            else:
                torch.add(a[i], b[i], alpha=scale, out=place)
        return places

    def at(self, slot: int) -> Rows:
        """The vector in a slot."""
        kept = self._kept.get(slot)
        if kept is None:
            kept = self._kept[slot] = [buffer[:, slot] for buffer in self._buffers]
        return kept

    def dots(self, left: Sequence[int], first: int, last: int) -> Tensor:
        """Products of the vectors `left` with those in slots `first` to `last`, exclusive.

        One pass over the memory, rows times rows: several times faster than rows times a column.

        Returns:
            `(samples, len(left), last - first)`.
        """
        total: list[Tensor] = []
        for leaf in range(self._leaves):
            if self.tracked:
                rows = torch.stack([self._kept[slot][leaf] for slot in left], dim=1)
                stored = self._stacked(leaf, first, last)
            else:
                buffer = self._buffers[leaf]
                rows = _rows_of(buffer, left)
                stored = buffer[:, first:last]
            total.append(torch.bmm(rows, stored.transpose(1, 2)))
        return sum_of(total)

    def combine(
        self, coefficients: Tensor, first: int, onto: Rows | None = None, scale: float = 1.0
    ) -> Rows:
        """onto + scale times the sum of the vectors from slot `first` on with `coefficients`.

        Args:
            coefficients: `(samples, length)`, in the vectors' dtype.
        """
        last = first + coefficients.shape[1]
        left = coefficients.unsqueeze(1)
        out: Rows = []
        for leaf in range(self._leaves):
            if self.tracked:
                stored = self._stacked(leaf, first, last)
            else:
                stored = self._buffers[leaf][:, first:last]
            if onto is None:
                out.append(torch.bmm(left, stored).squeeze(1))
            else:
                base = onto[leaf].unsqueeze(1)
                out.append(torch.baddbmm(base, left, stored, alpha=scale).squeeze(1))
        return out

    def rows(self) -> Rows:
        """All slots of each leaf, `(samples, slots, entries)`; not where tracked."""
        return list(self._buffers)

    def select(self, index: Tensor) -> None:
        """Keeps the samples named by `index`."""
        if self.tracked:
            self._kept = {slot: select(rows, index) for slot, rows in self._kept.items()}
        else:
            self._buffers = [buffer.index_select(0, index) for buffer in self._buffers]
            self._kept = {}

    @property
    def _leaves(self) -> int:
        return len(self._buffers) or len(next(iter(self._kept.values())))

    def _stacked(self, leaf: int, first: int, last: int) -> Tensor:
        return torch.stack([self._kept[slot][leaf] for slot in range(first, last)], dim=1)

    def _grow(self, rows: Rows, slot: int) -> None:
        self._kept = {}
        length = room(slot + 1, self.capacity)
        grown: Rows = []
        for leaf, row in enumerate(rows):
            new = row.new_empty(row.shape[0], length, row.shape[1])
            if self._buffers:
                new[:, :slot] = self._buffers[leaf][:, :slot]
            grown.append(new)
        self._buffers = grown


def _rows_of(buffer: Tensor, slots: Sequence[int]) -> Tensor:
    """`buffer[:, slots]`, a view where there are two: a strided row is no slower in a product."""
    if len(slots) == 2 and slots[0] < slots[1]:
        return buffer[:, slots[0] : slots[1] + 1 : slots[1] - slots[0]]
    return torch.stack([buffer[:, slot] for slot in slots], dim=1)
