"""Pairs of several data sets, learned from together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import Tensor
from typing_extensions import override

from equilibria.zoo.flow.data import Pair, Pairs
from equilibria.zoo.flow.data.pairs import Size, stacked

__all__ = ["Ingredient", "Mixture"]


@dataclass(frozen=True, kw_only=True)
class Ingredient:
    """Pairs that are a part of a mixture.

    Attributes:
        pairs: what they are.
        times: how often each is there.
        sparse: whether their flow is known at single pixels.
    """

    pairs: Pairs
    times: int
    sparse: bool


class Mixture(Pairs):
    """Pairs of several data sets one after the other, each as often as is said.

    Args:
        parts: what is in it.
        places: of the pairs that are taken; None for all.
    """

    def __init__(self, parts: Sequence[Ingredient], places: Sequence[int] | None = None) -> None:
        self.parts = tuple(parts)
        self._ends = [*accumulate(len(part.pairs) * part.times for part in parts)]
        self._places = range(self._ends[-1]) if places is None else places

    @override
    def __len__(self) -> int:
        return len(self._places)

    def _at(self, place: int) -> tuple[Ingredient, int]:
        """The data set that a pair is of, and its place there."""
        place = self._places[place]
        number = bisect_right(self._ends, place)
        part = self.parts[number]
        return part, (place - (self._ends[number - 1] if number else 0)) % len(part.pairs)

    def sparse(self, place: int) -> bool:
        """Whether the flow of a pair is known at single pixels."""
        return self._at(place)[0].sparse

    @override
    def size(self, place: int) -> Size:
        part, own = self._at(place)
        return part.pairs.size(own)

    @override
    def pair(self, place: int) -> Pair:
        part, own = self._at(place)
        return part.pairs.pair(own)

    @override
    def batch(self, places: Tensor) -> Pair:
        return stacked(self.pair(place) for place in places.tolist())

    @override
    def select(self, index: Tensor) -> Mixture:
        return Mixture(self.parts, [self._places[k] for k in index.tolist()])
