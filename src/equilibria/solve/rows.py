"""The vector space the solvers work in.

A state is held as *rows*, the type `Rows`: a list with one matrix `(samples, entries)` for each of
its leaves. In code, `row` is one such matrix, of which each sample is a row. ("Rows of the state",
with `coupled`, are what f mixes, such as the nodes of a graph.) The leaves are never joined into
one; what a solver needs (norms, inner products, combinations of earlier vectors) is summed over
them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.tree import describe

Rows = list[Tensor]
_linalg: Any = torch.linalg
_vector_norm: Any = _linalg.vector_norm

FIRST_ROOM = 8
"""Vectors that a store makes room for at first, at most."""


def entries(rows: Rows) -> int:
    """Entries of one sample, all leaves together."""
    return sum(row.shape[1] for row in rows)


def length(rows: Rows) -> Tensor:
    """Euclidean length of each sample over all its entries, all leaves together: `(samples,)`."""
    each = [_vector_norm(row, dim=1) for row in rows] if len(rows) > 1 else None
    return _vector_norm(rows[0] if each is None else torch.stack(each, dim=1), dim=1)


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
    each = [_vector_norm(row, ord=math.inf, dim=1) for row in rows]
    return each[0] if len(each) == 1 else torch.stack(each).amax(dim=0)


def divide_lengths(a: Rows, b: Rows) -> Tensor:
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
        [length([g]) / (length([image]) + tiny) for g, image in zip(residual, f, strict=True)]
    )


def dot(a: Rows, b: Rows) -> Tensor:
    """Inner product of each sample: `(samples,)`."""
    return sum_of([_linalg.vecdot(x, y) for x, y in zip(a, b, strict=True)])


def subtract(a: Rows, b: Rows) -> Rows:
    return list(map(torch.sub, a, b))


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


def keep_samples(owner: Any, index: Tensor) -> None:
    """Keeps the samples named by `index` in the attributes that the class lists in `PER_SAMPLE`:
    tensors `(samples, ...)` or rows. Those that are None or empty stay as they are."""
    for name in owner.PER_SAMPLE:
        value = getattr(owner, name)
        if isinstance(value, Tensor):
            value = value.index_select(0, index) if value.numel() else value
        elif isinstance(value, list):
            value = select(cast(Rows, value), index)
        setattr(owner, name, value)


def check_like(what: str, found: Any, wanted: Sequence[Tensor], expectation: str) -> None:
    """Raises where a plug-in has returned anything else than tensors like those that are wanted."""
    tensors = cast("Sequence[Any]", found)
    if not (isinstance(found, list | tuple) and all(isinstance(each, Tensor) for each in tensors)):
        raise TypeError(f"{what} returned {describe(found)}: expected {expectation}")
    shapes, expected = ([(tuple(x.shape), x.dtype) for x in each] for each in (tensors, wanted))
    if shapes != expected:
        raise ValueError(f"{what} returned {shapes}: expected {expected}, {expectation}")


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
        self._slots: dict[int, Rows] = {}  # views of the buffers, unless tracked

    def store(self, slot: int, a: Rows, b: Rows | None = None, scale: float = -1.0) -> Rows:
        """Stores a + scale b, or a alone, and returns what is stored."""
        if self.tracked:
            self._slots[slot] = a if b is None else add_scaled(a, scale, b)
            return self._slots[slot]
        places = self.place(slot, a)
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

    def place(self, slot: int, like: Rows) -> Rows:
        """Where the vector in a slot lies, to be written; not where tracked."""
        if slot not in self._slots:
            self._grow(like, slot)
        return self._slots[slot]

    def at(self, slot: int) -> Rows:
        """The vector in a slot."""
        return self._slots[slot]

    def dots(self, left: Sequence[int], first: int, last: int) -> Tensor:
        """Products of the vectors `left` with those in slots `first` to `last`, exclusive.

        One pass over the memory, rows times rows: several times faster than rows times a column.

        Returns:
            `(samples, len(left), last - first)`.
        """
        total: Tensor | None = None
        for leaf in range(len(self._slots[left[0]])):
            if self.tracked:
                rows, stored = self._stack(leaf, left), self._stack(leaf, range(first, last))
            else:
                buffer = self._buffers[leaf]
                stored = buffer[:, first:last]
                if len(left) == 2 and left[0] < left[1]:  # a strided view is no slower
                    rows = buffer[:, left[0] : left[1] + 1 : left[1] - left[0]]
                else:
                    rows = self._stack(leaf, left)
            products = torch.bmm(rows, stored.transpose(1, 2))
            total = products if total is None else total + products
        assert total is not None
        return total

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
        for leaf in range(len(self._slots[first])):
            if self.tracked:
                stored = self._stack(leaf, range(first, last))
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
            self._slots = {slot: select(rows, index) for slot, rows in self._slots.items()}
        elif self._buffers:
            self._hold([buffer.index_select(0, index) for buffer in self._buffers])

    def _stack(self, leaf: int, slots: Sequence[int]) -> Tensor:
        return torch.stack([self._slots[slot][leaf] for slot in slots], dim=1)

    def _grow(self, rows: Rows, slot: int) -> None:
        length = room(slot + 1, self.capacity)
        grown: Rows = []
        for leaf, row in enumerate(rows):
            new = row.new_empty(row.shape[0], length, row.shape[1])
            if self._buffers:
                new[:, :slot] = self._buffers[leaf][:, :slot]
            grown.append(new)
        self._hold(grown)

    def _hold(self, buffers: Rows) -> None:
        self._buffers = buffers
        slots = zip(*(buffer.unbind(1) for buffer in buffers), strict=True)
        self._slots = {slot: list(rows) for slot, rows in enumerate(slots)}
