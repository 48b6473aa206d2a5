"""Counts allocations and operations on tensors without data."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

__all__ = ["Ledger"]

LINE = 64
"""Granularity, in bytes, of torch's CPU allocator."""


class Ledger(TorchDispatchMode):
    """Live bytes and floating-point operations of the code run inside, by part of the step.

    A storage counts from the operation that creates it until the last tensor using it is freed, as
    in torch's own allocators. Temporary memory inside an operation is not seen. Operations are
    those of `torch.utils.flop_counter`: matrix products, convolutions, attention; two per
    multiply-add.

    Attributes:
        live: current number of live bytes.
        peak: maximum of `live`.
        at_peak: bytes by part, at the peak.
        most: maximum bytes of each part.
        flops: operations by part.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self.parts: Counter[str] = Counter()
        self.at_peak: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.flops: Counter[str] = Counter()
        self._part = "network"
        self._known: set[int] = set()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Attribute what is allocated and computed inside to a part of the step."""
        before, self._part = self._part, name
        try:
            yield
        finally:
            self._part = before

    def enter(self, name: str) -> None:
        """Attribute what follows to a part, until another is entered."""
        self._part = name

    def know(self, tree: Any) -> None:
        """Do not count the tensors of a tree, which outlive the ledger."""
        for leaf in pytree.tree_leaves(tree):
            if isinstance(leaf, Tensor):
                self._known.add(leaf.untyped_storage()._cdata)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        out = func(*args, **given)
        count = flop_registry.get(func._overloadpacket)
        if count is not None:
            self.flops[self._part] += int(count(*args, **given, out_val=out))
        for leaf in pytree.tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._note(leaf)
        return out

    def _note(self, tensor: Tensor) -> None:
        storage, part = tensor.untyped_storage(), self._part
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        size = -(-storage.nbytes() // LINE) * LINE
        self.live += size
        self.parts[part] += size
        self.most[part] = max(self.most[part], self.parts[part])
        if self.live > self.peak:
            self.peak, self.at_peak = self.live, self.parts.copy()
        weakref.finalize(storage, self._freed, key, size, part)

    def _freed(self, key: int, size: int, part: str) -> None:
        self._known.discard(key)
        self.live -= size
        self.parts[part] -= size
