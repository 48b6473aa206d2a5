"""Integrals against a Gaussian, exact to rounding for functions with kinks too."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

REACH = 10.0
"""Standard deviations to either side that are integrated over; e^-50 is left out."""

PANELS = 40
"""Pieces into which they are cut."""

DETAIL, STEP = 12.0, 0.5
"""Half-width of the interval around 0 that is cut into pieces of at most STEP: activations bend
there, however wide the Gaussian is."""


@lru_cache
def _legendre(order: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of Gauss-Legendre on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return torch.from_numpy(nodes).add(1).div(2), torch.from_numpy(weights).div(2)


def piecewise(edges: Tensor, order: int = 16) -> tuple[Tensor, Tensor]:
    """Return nodes and weights of Gauss-Legendre on each piece between edges that ascend.

    Args:
        edges: (..., pieces + 1); a piece of width zero counts nothing.
        order: nodes of a piece.

    Returns:
        Nodes and weights (..., pieces * order).
    """
    nodes, weights = _legendre(order)
    low, width = edges[..., :-1, None], edges.diff(dim=-1)[..., None]
    return (low + width * nodes).flatten(-2), (width * weights).flatten(-2)


def divide_interval(
    low: float, high: float, kinks: Sequence[float], panels: int = PANELS, step: float = STEP
) -> Tensor:
    """Return edges from low to high: equal pieces, small ones near 0, and one at each kink."""
    near = torch.arange(-DETAIL, DETAIL + step, step, dtype=torch.float64)
    inner = torch.cat([near, torch.tensor(list(kinks), dtype=torch.float64)])
    inner = inner[(inner > low) & (inner < high)]
    whole = torch.linspace(low, high, panels + 1, dtype=torch.float64)
    return torch.cat([whole, inner]).sort().values


def normal_density(x: Tensor, mean: float, variance: float) -> Tensor:
    """Density of N(mean, variance) at x."""
    scaled = (x - mean).square() / (2 * variance)
    return scaled.neg().exp() / math.sqrt(2 * math.pi * variance)


def gaussian_rule(
    mean: float, variance: float, kinks: Sequence[float] = ()
) -> tuple[Tensor, Tensor]:
    """Return nodes and weights with E f(h) = sum of weights * f(nodes) for h ~ N(mean, variance).

    Gauss-Hermite converges slowly for functions with kinks, and for smooth ones too where the
    Gaussian is far wider than what they bend on (tanh at a variance of 100). Gauss-Legendre
    between kinks, on pieces no wider than both, has neither trouble.

    Args:
        mean: of h.
        variance: of h; at 0 there is one node.
        kinks: places where the function or a derivative jumps.
    """
    if variance <= 0:
        point = torch.tensor([mean], dtype=torch.float64)
        return point, torch.ones_like(point)
    reach = REACH * math.sqrt(variance)
    nodes, weights = piecewise(divide_interval(mean - reach, mean + reach, kinks))
    return nodes, weights * normal_density(nodes, mean, variance)


def root(
    f: Callable[[float], float],
    low: float,
    high: float,
    *,
    ends: tuple[float, float] | None = None,
    tolerance: float = 1e-13,
) -> float:
    """Return x in [low, high] with f(x) = 0, where f changes its sign.

    False position with the weight of a stale end halved (Illinois), and a bisection each fourth
    step.

    Args:
        f: a continuous function.
        low: one end.
        high: the other, where f has the opposite sign.
        ends: f(low) and f(high) where they are known.
        tolerance: of x, relative to the ends.

    Raises:
        ValueError: f has the same sign at both ends.
    """
    at_low, at_high = ends or (f(low), f(high))
    if at_low == 0:
        return low
    if at_high == 0:
        return high
    if (at_low > 0) == (at_high > 0):
        raise ValueError(f"no change of sign between {low} and {high}")
    close = tolerance * (abs(low) + abs(high))
    side, last = 0, math.inf
    for turn in range(200):
        middle = (low * at_high - high * at_low) / (at_high - at_low)
        if turn % 4 == 3 or not min(low, high) < middle < max(low, high):
            middle = (low + high) / 2
        value = f(middle)
        if value == 0 or abs(middle - last) <= close or abs(high - low) <= close:
            return middle
        last = middle
        if (value > 0) == (at_low > 0):
            low, at_low = middle, value
            at_high = at_high / 2 if side == -1 else at_high
            side = -1
        else:
            high, at_high = middle, value
            at_low = at_low / 2 if side == 1 else at_low
            side = 1
    return (low + high) / 2
