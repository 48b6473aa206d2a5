"""The law of a pre-activation that its own output feeds back into, and of two such."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from equilibria.theory.activations import Activation
from equilibria.theory.quadrature import REACH, divide_interval, normal_density, piecewise, root

PIECES = 14
"""Pieces of the inner integral over two fields, beside those that kinks make."""


@dataclass(frozen=True)
class Law:
    """Distribution of a number as places and their probabilities.

    Attributes:
        values: (nodes,), float64.
        weights: (nodes,), summing to 1; those of a quadrature, so that means are exact.
    """

    values: Tensor
    weights: Tensor

    def mean(self, function: Callable[[Tensor], Tensor]) -> float:
        """Return the mean of a function of the number."""
        return float((self.weights * function(self.values)).sum())


@dataclass(frozen=True)
class CoupledField:
    """A unit in a Gaussian field u with its own output added: h = u + coupling * phi(h).

    h - coupling * phi(h) ascends, so that each u has one h.

    Attributes:
        activation: phi.
        mean: of u.
        variance: of u.
        coupling: share of the unit's output that comes back to it.
    """

    activation: Activation
    mean: float
    variance: float
    coupling: float

    @cached_property
    def law(self) -> Law:
        """Law of h, at some 1,400 nodes."""
        return self._law(coarse=False)

    @cached_property
    def coarse_law(self) -> Law:
        """The same at some 350 nodes, to six digits."""
        return self._law(coarse=True)

    def _law(self, *, coarse: bool) -> Law:
        # The density of h is that of u there times 1 - coupling * phi'(h); nodes stand in h, where
        # the kinks are.
        if self.variance <= 0:
            point = torch.tensor([self._at(self.mean)], dtype=torch.float64)
            return Law(point, torch.ones_like(point))
        reach = REACH * math.sqrt(self.variance)
        # Nothing to speak of lies at the ends: four digits of them are plenty.
        low, high = (self._at(self.mean + end, 1e-4) for end in (-reach, reach))
        kinks = self.activation.kinks
        if coarse:
            nodes, weights = piecewise(divide_interval(low, high, kinks, 20, 1.0), order=8)
        else:
            nodes, weights = piecewise(divide_interval(low, high, kinks))
        density = normal_density(self.of(nodes), self.mean, self.variance)
        if self.coupling:
            density = density * (1 - self.coupling * self.activation.slope(nodes))
        return Law(nodes, weights * density)

    def of(self, h: Tensor) -> Tensor:
        """Return u = h - coupling * phi(h)."""
        return h - self.coupling * self.activation(h) if self.coupling else h

    def response(self, h: Tensor) -> Tensor:
        """Return the output's derivative with respect to u, phi' / (1 - coupling * phi')."""
        slope = self.activation.slope(h)
        return slope / (1 - self.coupling * slope)

    def _at(self, u: float, tolerance: float = 1e-13) -> float:
        """The h of one u, wherever it is."""
        if self.coupling == 0:
            return u

        def above(h: float) -> float:
            return float(self.of(torch.tensor(h, dtype=torch.float64))) - u

        low, high, step = u, u, 1.0
        while above(low) > 0:
            low, step = low - step, 2 * step
        step = 1.0
        while above(high) < 0:
            high, step = high + step, 2 * step
        return root(above, low, high, tolerance=tolerance)

    def invert(self, u: Tensor) -> Tensor:
        """Return the h of each entry of u, which lie where the law does."""
        if self.coupling == 0:
            return u
        ends = self.law.values
        # A table of the ascending h -> u, then Newton's steps, between the table's neighbours.
        low, high = float(ends[0]), float(ends[-1])
        kinks = [k for k in self.activation.kinks if low < k < high]
        parts = [
            torch.linspace(low, high, 1001, dtype=torch.float64),
            torch.linspace(max(low, -12), min(high, 12), 1001, dtype=torch.float64),
            torch.tensor(kinks, dtype=torch.float64),
        ]
        table = torch.cat(parts).sort().values
        heights = self.of(table)
        place = torch.searchsorted(heights, u.contiguous()).clamp(1, len(table) - 1)
        below, above = table[place - 1], table[place]
        h_low, h_high = heights[place - 1], heights[place]
        share = ((u - h_low) / (h_high - h_low).clamp(min=1e-300)).clamp(0, 1)
        h = below + share * (above - below)
        for _ in range(3):
            step = (self.of(h) - u) / (1 - self.coupling * self.activation.slope(h))
            h = torch.minimum(torch.maximum(h - step, below), above)
        return h


def mean_product(
    first: CoupledField,
    second: CoupledField,
    common: float,
    left: Callable[[Tensor], Tensor],
    right: Callable[[Tensor], Tensor],
) -> float:
    """Return E left(h) right(h') where u and u' are jointly Gaussian, to about six digits.

    The outer integral stands in h. The inner is over u' given u, a Gaussian narrower than u', on
    pieces of its own width between the kinks; h' is looked up from u'.

    Args:
        first: of h.
        second: of h'.
        common: covariance of u and u'.
        left: function of h.
        right: function of h'.
    """
    law = first.coarse_law
    keep = law.weights > 1e-12 * float(law.weights.max())
    h, weights = law.values[keep], law.weights[keep]
    u = first.of(h)
    slope = common / first.variance if first.variance > 0 else 0.0
    centre = second.mean + slope * (u - first.mean)
    width = math.sqrt(max(0.0, second.variance - slope * common))
    if width <= 1e-7 * math.sqrt(max(second.variance, 1e-300)):
        return float((weights * left(h) * right(second.invert(centre))).sum())
    reach = 0.7 * REACH
    kinks = second.of(torch.tensor(second.activation.kinks, dtype=torch.float64))
    pieces = max(PIECES, min(100, math.ceil(1.4 * reach * width)))
    even = torch.linspace(-reach, reach, pieces + 1, dtype=torch.float64)
    bends = ((kinks - centre[:, None]) / width).clamp(-reach, reach)
    edges = torch.cat([even.expand(len(centre), -1), bends], 1).sort(1).values
    t, inner = piecewise(edges, order=6)
    values = right(second.invert(centre[:, None] + width * t))
    means = (inner * normal_density(t, 0.0, 1.0) * values).sum(1)
    return float((weights * left(h) * means).sum())
