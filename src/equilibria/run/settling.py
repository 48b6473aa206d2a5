"""Where in an image the equilibrium is found late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.run.evaluation import evaluating
from equilibria.run.models import EquilibriumModel, Model
from equilibria.solve import Status

__all__ = ["Settling", "settled_after", "settling"]

_MEMORY = 2**30
"""Bytes that the iterates of a solve may take; of a longer one some are left out, evenly."""


@dataclass(frozen=True, kw_only=True)
class Settling:
    """How the state of one image settled, place by place."""

    after: Tensor | None
    """(height, width) of the highest resolution: evaluations after which each place stays within
    the tolerance; None where the solve did not converge, so that there is no z* to settle at."""
    evals: int
    """Evaluations of the solve."""
    status: Status
    """How it ended."""


@torch.no_grad()
def settling(model: Model, image: Tensor, rtol: float) -> Settling | None:
    """Solve for one image, and return where its state settled when.

    Args:
        model: any; only an equilibrium network whose state lies in a plane and is found in one
            solve has places.
        image: (1, channels, height, width).
        rtol: of the solver; see `settled_after`.

    Returns:
        None for a network without places.
    """
    if not isinstance(model, EquilibriumModel):
        return None
    with evaluating(model):
        solutions = model(image).solutions
        if len(solutions) != 1 or _highest(solutions[0].value) is None:
            return None
        first = solutions[0]
        evals, status = int(first.stats.evals[0]), Status(int(first.status[0]))
        if status is not Status.CONVERGED:
            return Settling(after=None, evals=evals, status=status)
        leaves = pytree.tree_leaves(first.value)
        each = sum(leaf.numel() * leaf.element_size() for leaf in leaves)
        depths = list(range(0, evals, max(1, -(-evals * each // _MEMORY))))
        found = model(image, states=depths).solution
    value = _highest(found.value)
    assert value is not None  # as in the first solve
    states = [_highest(state) for state in found.states]
    after = settled_after([z for z in states if z is not None], value, depths, evals, rtol)
    return Settling(after=after[0], evals=evals, status=status)


def settled_after(
    states: Sequence[Tensor], value: Tensor, depths: Sequence[int], evals: int, rtol: float
) -> Tensor:
    """Return after how many evaluations each place stays near z*, (batch, height, width) int64.

    It is near where the root mean square of z - z* over the channels of the place is at most rtol
    times that of z* over all places and channels of the sample.

    Args:
        states: iterates, (batch, channels, height, width) each.
        value: z*, of the same shape.
        depths: evaluations after which the iterates were taken, ascending.
        evals: of the whole solve: what a place has that is not near at the last of them.
        rtol: relative tolerance.
    """
    limit = rtol * value.square().mean((1, 2, 3), keepdim=True).sqrt()[:, 0]
    after = torch.full((len(value), *value.shape[2:]), evals, device=value.device)
    near = torch.ones_like(after, dtype=torch.bool)
    for depth, state in zip(reversed(depths), reversed(states), strict=True):
        near &= (state - value).square().mean(1).sqrt() <= limit
        after[near] = depth
    return after


def _highest(state: Any) -> Tensor | None:
    """The leaf of a state with the most places; None where no leaf lies in a plane."""
    planes = [leaf for leaf in pytree.tree_leaves(state) if leaf.ndim == 4]
    return max(planes, key=lambda leaf: leaf.shape[2] * leaf.shape[3], default=None)
