"""Named signals: several of one kind, each of which is learned by a network of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from equilibria.zoo.signal.data.signal import Signal

__all__ = ["SignalSet"]


@dataclass(frozen=True, kw_only=True)
class SignalSet:
    """Signals by name.

    Attributes:
        title: What tables call the set.
        signals: In an order that never changes.
        checksum: ``sha256:...`` over all values and what they mean.
    """

    title: str
    signals: tuple[Signal, ...] = field(repr=False)
    checksum: str

    @classmethod
    def of(cls, title: str, signals: Sequence[Signal]) -> Self:
        """A set of signals.

        Raises:
            ValueError: If there is none, or two have one name.
        """
        names = [each.name for each in signals]
        if not names or len({*names}) < len(names):
            raise ValueError(f"signals are called {names}: expected one or more different names")
        total = hashlib.sha256()
        for each in signals:
            total.update(f"{each.name} {each.field}".encode())
            total.update(each.values.contiguous().numpy().tobytes())
        return cls(title=title, signals=(*signals,), checksum=f"sha256:{total.hexdigest()}")

    def __len__(self) -> int:
        return len(self.signals)

    def __getitem__(self, name: int | str) -> Signal:
        """The signal at a place, or of a name.

        Raises:
            ValueError: If none has the name.
            IndexError: If there is no such place.
        """
        if isinstance(name, int):
            return self.signals[name]
        for each in self.signals:
            if each.name == name:
                return each
        raise ValueError(
            f"{self.title} has no {name!r}: choose from {', '.join(s.name for s in self.signals)}"
        )
