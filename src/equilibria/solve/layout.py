"""How a state lies in the rows that a solver works on, and which of its rows make up a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.rows import LARGEST, Rows, length, unit_of


@dataclass(frozen=True, eq=False)
class Groups:
    """The samples of a batch whose sizes differ: graphs, say, with their nodes as rows.

    A solver wants one row of equal length for each sample, so a group is laid out along the slots
    of one row, and the slots that it leaves are zero: they add nothing to a norm or an inner
    product, no step changes them, and f never sees them. Memory: samples times the largest of
    them. (`DirectSolve` alone takes, and counts, a product for each slot.)

    Attributes:
        index: `(rows,)` int64, the sample of each row.
        samples: how many there are.
        longest: rows of the largest.
        sizes: `(samples,)` int64, rows of each.
    """

    index: Tensor
    samples: int
    longest: int
    sizes: Tensor

    @classmethod
    def of(cls, index: Tensor, rows: int) -> Groups:
        """Reads the index that a caller gave.

        Raises:
            TypeError: it is not int64.
            ValueError: it names a sample for other than `rows` rows, a negative one, or leaves
                one of 0, 1, ..., max(index) without rows.
        """
        if index.dtype != torch.int64:
            raise TypeError(
                f"coupled: expected an index of int64, the sample of each row of the "
                f"state, got {index.dtype}"
            )
        if index.shape != (rows,):
            raise ValueError(
                f"coupled: expected the sample of each of the state's {rows} rows, "
                f"shape ({rows},), got the shape {tuple(index.shape)}"
            )
        if private.is_mapped(index):
            raise ValueError("coupled: the samples can't differ along an axis of torch.vmap")
        if int(index.min()) < 0:
            raise ValueError(f"coupled: expected samples >= 0, got {int(index.min())}")
        if int(index.max()) >= rows:  # whose sizes might not even fit in memory
            raise ValueError(
                f"coupled: {rows} rows can't be the samples 0 to {int(index.max())}: number them "
                "0, 1, ... without a gap"
            )
        sizes = torch.bincount(index)
        if not bool(sizes.all()):
            empty = int((sizes == 0).nonzero()[0])
            raise ValueError(
                f"coupled: sample {empty} has no rows, though {len(sizes) - 1} has: "
                "number the samples 0, 1, ... without a gap"
            )
        return cls(index, len(sizes), int(sizes.max()), sizes)

    @cached_property
    def slots(self) -> Tensor | None:
        """`(rows,)`, where each row lies among samples * longest slots; None: in its own place."""
        order = torch.argsort(self.index, stable=True)
        begin = self.sizes.cumsum(0) - self.sizes
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order), device=order.device) - begin[self.index[order]]
        found = self.index * self.longest + place
        own = torch.arange(len(order), device=order.device)
        full = len(order) == self.samples * self.longest
        return None if full and torch.equal(found, own) else found

    def row(self, leaf: Tensor) -> Tensor:
        """`(rows, ...)` -> `(samples, longest * entries)`."""
        if self.slots is not None:
            room = leaf.new_zeros(self.samples * self.longest, *leaf.shape[1:])
            leaf = room.index_copy(0, self.slots, leaf)
        return leaf.reshape(self.samples, -1)

    def leaf(self, row: Tensor, shape: tuple[int, ...]) -> Tensor:
        """`(samples, longest * entries)` -> `(rows, ...)`, `shape` that of one row."""
        leaf = row.reshape(self.samples * self.longest, *shape)
        return leaf if self.slots is None else leaf.index_select(0, self.slots)

    def repeat(self, count: int) -> Groups:
        """So many batches like this one after another."""
        start = torch.arange(count, device=self.index.device) * self.samples
        index = (start[:, None] + self.index).flatten()
        return Groups(index, count * self.samples, self.longest, self.sizes.repeat(count))


Coupled = bool | Groups
"""Which rows f mixes: none, all of them, or those of each group."""


def read_groups(given: Any, rows: int) -> Groups:
    """What `coupled=`, if it is no bool, says of a state with so many rows.

    Raises:
        TypeError, ValueError: it is not the sample of each row.
    """
    if isinstance(given, Tensor):
        return Groups.of(given, rows)
    raise TypeError(
        "coupled: expected a bool, or an int64 tensor with the sample of each row of the state, "
        f"got {given!r}"
    )


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
        each = [self.rows([x.detach() for x in leaves]) for leaves in states]
        size = length(each[0])
        for rows in each[1:]:
            size = torch.maximum(size, length(rows))
        # Most often all are well within the range, which their lengths tell.
        size = private.bare(size)
        if torch.equal(torch.clamp(size, 1 / LARGEST, LARGEST), size):
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

    @cached_property
    def plain(self) -> bool:
        """Are the leaves rows as they are?"""
        return self.flat and self.unit is None

    def rows(self, leaves: Sequence[Tensor]) -> Rows:
        rows = list(leaves) if self.flat else self._rows(leaves)
        if self.unit is None:
            return rows
        # What is a number in the units of the state stays one.
        most = torch.finfo(rows[0].dtype).max
        return [torch.where(x.isinf(), x, (x / self.unit).clamp(-most, most)) for x in rows]

    def leaves(self, rows: Rows) -> list[Tensor]:
        rows = rows if self.unit is None else [row * self.unit for row in rows]
        return list(rows) if self.flat else self._leaves(rows)

    def _rows(self, leaves: Sequence[Tensor]) -> Rows:
        if isinstance(self.coupled, Groups):
            return [self.coupled.row(leaf) for leaf in leaves]
        if self.coupled:
            leaves = [leaf.unsqueeze(0) for leaf in leaves]
        return [
            leaf.permute(order).reshape(leaf.shape[0], -1)
            for leaf, order in zip(leaves, self.orders, strict=True)
        ]

    def _leaves(self, rows: Rows) -> list[Tensor]:
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

    @property
    def fill_ratio(self) -> Tensor | None:
        """The root of the share of its row that each sample fills `(samples,)`; None: it does."""
        if not isinstance(self.coupled, Groups) or self.coupled.slots is None:
            return None
        return (self.coupled.sizes / self.coupled.longest).sqrt()

    @property
    def share(self) -> Tensor | None:
        """What a length in the units of the state is multiplied by, `(samples,)`, to be one of the
        rows, of which a sample may fill a share only; None: 1."""
        ratio = self.fill_ratio
        if self.unit is None:
            return ratio
        return self.unit.squeeze(1).reciprocal() * (1.0 if ratio is None else ratio)

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
