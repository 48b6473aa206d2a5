"""The scale of the weights at which the fixed point of a wide network stops to be stable."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from equilibria.nn.init import Ensemble
from equilibria.theory.activations import Activation, as_activation
from equilibria.theory.meanfield import Injection, NoMeanFieldError
from equilibria.theory.spectrum import spectral_radius

__all__ = ["critical_scale"]

LIMIT = 100.0
"""A radius that is below 1 up to this scale is taken to stay there."""

LEAST = 1e-3
"""Smallest scale that is looked at."""

RATIO = 1.25
"""Of the scales at which the curve is looked at for the first crossing."""


def critical_scale(
    activation: str | Activation | Callable[[Tensor], Tensor],
    ensemble: Ensemble,
    *,
    input_variance: float = 1.0,
    input_mean: float = 0.0,
    injection: Injection = "outside",
    reaction: bool = True,
    limit: float = LIMIT,
    tolerance: float = 1e-6,
) -> float:
    """Return sqrt(V*), the smallest scale at which the spectral radius at the fixed point is 1.

    The radius is computed at scales that grow by a quarter, and the first at which it is 1 or more
    closed in on by bisection; so is the first at which h has no law (a variance without bound, as
    relu's at V = 2, or a reaction without solution), as nothing converges there.

    Args:
        activation, ensemble, input_variance, input_mean, injection, reaction: as for `mean_field`.
        limit: largest scale looked at.
        tolerance: relative, of the scale.

    Returns:
        The scale; infinity where the radius stays below 1 up to `limit`.

    Raises:
        ValueError: as for `spectral_radius`.

    papers: Agarwala and Schoenholz 2022, section 3.2, fig. 4.
    """
    phi = as_activation(activation)

    def stable(scale: float) -> bool:
        try:
            radius = spectral_radius(
                phi,
                ensemble,
                scale**2,
                input_variance=input_variance,
                input_mean=input_mean,
                injection=injection,
                reaction=reaction,
            )
        except NoMeanFieldError:
            return False
        return radius < 1

    # r <= sqrt(V) max |phi'| for a Gaussian W, twice that for a symmetric one: no need to look
    # below what makes this 1.
    steepest = max(phi.steepest, -phi.flattest)
    low = LEAST if steepest == 0 else max(LEAST, min(0.49 / steepest, limit))
    if not stable(low):
        low = LEAST
        if not stable(low):
            return low
    high = low
    while True:
        if high >= limit:
            return math.inf
        low, high = high, min(RATIO * high, limit)
        if not stable(high):
            break
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (middle, high) if stable(middle) else (low, middle)
    return (low + high) / 2
