"""Which rows of a state make up a sample."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from equilibria.solve import private


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

    def repeated(self, count: int) -> Groups:
        """So many batches like this one after another."""
        start = torch.arange(count, device=self.index.device) * self.samples
        index = (start[:, None] + self.index).flatten()
        return Groups(index, count * self.samples, self.longest, self.sizes.repeat(count))


Coupled = bool | Groups
"""Which rows f mixes: none, all of them, or those of each group."""


def coupling(given: Any, rows: int) -> Coupled:
    """What `coupled=` says of a state with so many rows.

    Raises:
        TypeError, ValueError: it is neither a bool nor the sample of each row.
    """
    if isinstance(given, bool):
        return given
    if isinstance(given, Tensor):
        return Groups.of(given, rows)
    raise TypeError(
        "coupled: expected a bool, or an int64 tensor with the sample of each row of the state, "
        f"got {given!r}"
    )
