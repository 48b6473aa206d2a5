"""Signals that travel through a state: entries that come to rest behind a front."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.rows import Rows, entries, sum_of
from equilibria.solve.solvers import Point

SETTLED = 1e-3  # share of all entries, and of their size, that tells a front from rounding


def at_rest(z: Rows, f: Rows) -> Rows:
    """Masks of the entries that f leaves as they are, up to rounding."""
    rounding = 64 * torch.finfo(z[0].dtype).eps
    return [(y - x).abs() <= rounding * y.abs() for x, y in zip(z, f, strict=True)]


def count_entries(masks: Rows) -> Tensor:
    """Entries of each sample in which the masks are true, `(samples,)`."""
    return sum_of([mask.sum(1) for mask in masks])


def carries_front(point: Point, before: Rows, scale: Tensor) -> Tensor:
    """Have entries, one in a thousand, changed since `before` and come to rest? `scale` is the
    length of f(z)."""
    size = entries(point.f)
    least = (SETTLED * size**-0.5 * scale).unsqueeze(1)
    rest = zip(at_rest(point.z, point.f), point.f, before, strict=True)
    settled = count_entries([still & ((image - row).abs() > least) for still, image, row in rest])
    return settled > SETTLED * size


def front_arrives(point: Point, before: Sequence[Rows], evals: int, left: int) -> Tensor:
    """Do so many entries come to rest at each evaluation that all will within the budget?

    Those that are zero do not count: an activation that dies is no signal.

    Args:
        before: the one or two iterates before this one.
        evals: evaluations so far.
        left: evaluations that are left.
    """
    last = at_rest(point.z, point.f)
    signal = count_entries([x & (row != 0) for x, row in zip(last, point.f, strict=True)]) > 0
    if not private.some(signal):
        return signal
    rest = [*(at_rest(z, f) for z, f in pairwise([*before, point.z])), last]
    fresh = [
        count_entries(
            [x & ~y & (row != 0) for x, y, row in zip(later, earlier, point.z, strict=True)]
        )
        for earlier, later in pairwise(rest)
    ]
    rate = sum(fresh[1:], fresh[0])
    if len(fresh) == 2 and evals == 3:  # rows without a neighbour rest at once
        rate = torch.where(fresh[0] * fresh[1] > 0, rate, 0)
    moving = entries(point.z) - count_entries(last)
    return signal & (rate > 0) & (moving <= rate * left)
