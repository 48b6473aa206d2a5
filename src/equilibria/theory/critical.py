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

LEAST = 1e-6
"""Of the scale from which on a Jacobian may have radius 1: the smallest that is looked at."""

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
        limit: largest scale looked at, positive and finite.
        tolerance: relative, of the scale; 0 for all digits.

    Returns:
        The scale; infinity where the radius stays below 1 up to `limit`.

    Raises:
        ValueError: as for `spectral_radius`; the limit or the tolerance is out of range; phi' is
            not finite somewhere between -50 and 50; or no scale is stable, however small.

    papers: Agarwala and Schoenholz 2022, section 3.2, fig. 4.
    """
    if not (math.isfinite(limit) and limit > 0):
        raise ValueError(f"limit must be positive and finite, got {limit}")
    if not 0 <= tolerance < 1:
        raise ValueError(f"tolerance must be at least 0 and below 1, got {tolerance}")
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

    steepest = max(phi.steepest, -phi.flattest)
    if not math.isfinite(steepest):
        raise ValueError(f"the slope of {phi.name} is not finite everywhere between -50 and 50")
    # r <= sqrt(V) max |phi'| for a Gaussian W, twice that for a symmetric one: no need to look
    # below what makes this 1, unless phi is steeper far out.
    low = high = min(0.49 / steepest, limit) if steepest > 0 else limit
    least = LEAST * low
    while not stable(low):
        low, high = low / 2, low
        if low < least:
            raise ValueError(
                f"{phi.name} with '{ensemble}' weights is unstable at all scales looked at, down "
                f"to {least:g}"
            )
    while low == high:  # the first crossing is still ahead
        if high >= limit:
            return math.inf
        following = min(RATIO * high, limit)
        low, high = (following, following) if stable(following) else (high, following)
    while high - low > tolerance * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (middle, high) if stable(middle) else (low, middle)
    return (low + high) / 2
