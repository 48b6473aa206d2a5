"""Batches of pairs of images with their flow, in an order of their own, seen at random."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.data.errors import DataError
from equilibria.data.flow import Pair, Pairs
from equilibria.tasks.ahead import Ahead
from equilibria.tasks.feed import WHOLE, Batch, Feed, Order, Part
from equilibria.tasks.flow.view import DRAWS, View, seen

__all__ = ["FlowFeed", "batch_of"]


class FlowFeed(Feed):
    """Pairs in an order of their own in each pass, seen at random.

    How a pair is seen is a function of the seed and the step, as the order is: what is made ahead
    changes nothing, and neither do more processes.

    Args:
        pairs: what to learn from.
        batch_size: pairs a batch, of all processes together.
        seed: of the orders, and of how pairs are seen.
        view: how the pair at a place is seen.

    Raises:
        ValueError: the pairs do not fill one batch.
    """

    def __init__(
        self, pairs: Pairs, batch_size: int, seed: int, *, view: Callable[[int], View]
    ) -> None:
        self.pairs, self.seed, self.view = pairs, seed, view
        self.order = Order(len(pairs), batch_size, seed)
        self.steps = self.order.steps
        self._ahead = Ahead(self._made)

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        """Return the batch of `step`, and begin to make the next.

        Raises:
            DataError: a file cannot be read or is damaged; the message names it.
        """
        return self._ahead.batch(step, part)

    def _made(self, step: int, part: Part) -> Batch:
        places = self.order.places(step, part)
        seed = random.Random(f"flow {self.seed} {step}").getrandbits(63)
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.rand(self.order.batch_size, DRAWS, generator=generator)
        mine = drawn[part.of(self.order.batch_size)]
        return batch_of(self._seen(places, mine))

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
