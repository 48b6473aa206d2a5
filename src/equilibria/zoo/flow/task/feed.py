"""Batches of pairs of images with their flow, in an order of their own, seen at random."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.run.data.errors import DataError
from equilibria.run.tasks.feed import Batch, Part
from equilibria.zoo.flow.data import Pair, Pairs
from equilibria.zoo.flow.task.view import DRAWS, View, seen
from equilibria.zoo.io.ahead import AheadFeed

__all__ = ["FlowFeed", "batch_of"]


class FlowFeed(AheadFeed):
    """Pairs in an order of their own in each pass, seen at random.

    Args:
        pairs: what to learn from.
        batch_size: pairs a batch, of all processes together.
        seed: of the orders, and of how pairs are seen.
        view: how the pair at a place is seen.

    Raises:
        ValueError: the pairs do not fill one batch.
    """

    stream = "flow"

    def __init__(
        self, pairs: Pairs, batch_size: int, seed: int, *, view: Callable[[int], View]
    ) -> None:
        super().__init__(len(pairs), batch_size, seed)
        self.pairs, self.view = pairs, view

    @override
    def made(self, places: Tensor, step: int, part: Part) -> Batch:
        return batch_of(self._seen(places, self.drawn(step, part, DRAWS)))

    def _seen(self, places: Tensor, drawn: Tensor) -> Pair:
        alike = len({(self.view(k), self.pairs.size(k)) for k in places.tolist()}) == 1
        parts = [
            seen(checked(self.pairs.batch(each), each), self.view(int(each[0])), numbers)
            for each, numbers in zip(
                *((places[None], drawn[None]) if alike else (places[:, None], drawn[:, None])),
                strict=True,
            )
        ]
        return Pair(*(torch.cat(each) for each in zip(*parts, strict=True)))


def checked(pair: Pair, places: Tensor) -> Pair:
    """Return a batch of pairs whose flow is a number wherever it is said to be known.

    Raises:
        DataError: it is not; the message names the pair.
    """
    finite = pair.flow.isfinite().all(1) | ~pair.valid
    if not bool(finite.all()):
        place = int(places[~finite.flatten(1).all(1)][0])
        raise DataError(
            f"the flow of pair {place} (from 0) is not finite at pixels that are said to be valid: "
            "mark them as not valid, or leave the pair out"
        )
    return pair


def batch_of(pair: Pair) -> Batch:
    """Return a batch: both images are its inputs, flow and valid pixels its targets."""
    first, second, flow, valid = pair
    return Batch((first, second), (flow, valid))
