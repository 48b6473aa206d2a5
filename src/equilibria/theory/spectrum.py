"""Eigenvalues of df/dh = W diag(phi'(h*)) at the fixed point of a wide network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from equilibria.nn.init import Ensemble
from equilibria.theory import traces
from equilibria.theory.activations import Activation, as_activation
from equilibria.theory.meanfield import Injection, MeanField, NoMeanFieldError, mean_field

_NEGATIVE = -1e-12
"""Slopes below it are not rounding."""


def spectral_radius(
    activation: str | Activation | Callable[[Tensor], Tensor],
    ensemble: Ensemble,
    V: float,
    *,
    input_variance: float = 1.0,
    input_mean: float = 0.0,
    injection: Injection = "outside",
    reaction: bool = True,
) -> float:
    """Return the spectral radius r of the Jacobian W diag(phi'(h*)) of a wide network at h*.

    r^2 = V E phi'(h)^2 for "gaussian" and "orthogonal" (Theorem 3.2). For "goe" and
    "antisymmetric" it is the edge of the free multiplicative convolution of the semicircle with
    the law of phi'(h), see `goe_radius`; for "normal" see `families.edge`.

    Below r = 1 plain iteration converges from near h*. Above it, there may still be fixed points.
    For "goe" r rises to 1 just where `MeanField.gain` does, and there is no theory beyond.

    Args:
        activation, ensemble, V, input_variance, input_mean, injection, reaction: as for
            `mean_field`. `reaction=False` takes the law of h from Theorem 3.1, as the paper does.

    Raises:
        NoMeanFieldError: h has no law at this V, or one that means nothing ("goe" beyond gain 1).
        ValueError: as for `mean_field`; or the activation is not monotone and the ensemble
            symmetric or antisymmetric.

    papers: Agarwala and Schoenholz 2022, Theorem 3.2, eq. 30; for GOE C.1, eq. 110.
    """
    found = mean_field(
        activation,
        ensemble,
        V,
        input_variance=input_variance,
        input_mean=input_mean,
        injection=injection,
        reaction=reaction,
    )
    return radius_at(found)


def radius_at(found: MeanField) -> float:
    """Return the spectral radius of the Jacobian for a law of h that is known.

    Args:
        found: what `mean_field` returned.

    Raises:
        NoMeanFieldError: the reaction of symmetric weights was counted in and its gain is over 1.
        ValueError: the activation is not monotone and the ensemble symmetric or antisymmetric.
    """
    slopes = found.slopes()
    if traces.reaction(found.ensemble) == 0:
        mean, square = slopes.mean(lambda d: d), slopes.mean(torch.square)
        return traces.edge(found.ensemble, found.V, mean, square)
    if float(slopes.values.min()) < _NEGATIVE:
        raise ValueError(
            f"{found.activation.name} is not monotone: the spectral radius for '{found.ensemble}' "
            "is known for slopes that are nowhere negative; measure it by "
            "equilibria.stability.spectral_radius"
        )
    if found.coupling > 0 and found.gain > 1:
        # The formula would fall below 1 again: 1 / coupling is then a point y of it on the far side
        # of the minimum, which belongs to no spectrum.
        raise NoMeanFieldError(
            f"the fixed point of {found.activation.name} with symmetric weights is beyond its "
            f"transition at V = {found.V:g} (gain {found.gain:.3g}): nothing is known of its "
            "spectrum; take a smaller V"
        )
    return goe_radius(slopes.values, slopes.weights, found.V)


def goe_radius(
    slopes: Tensor | Sequence[float], weights: Tensor | Sequence[float], V: float
) -> float:
    """Return the spectral radius of D W, W from the GOE, D diagonal and independent of W.

    D W has the eigenvalues of the symmetric D^(1/2) W D^(1/2). With g = E d / (z - V d g) and
    y = z / (V g), z^2 = V y^2 E d / (y - d); the spectrum ends where this is least:
    r^2 = V min over y > max d of y^2 E d / (y - d), a convex function of y. For d in {0, 1} with
    P(1) = p it gives the 2 sqrt(V p) of C.1. D^(1/2) A D^(1/2) with an antisymmetric A has the same
    radius on the imaginary axis.

    Args:
        slopes: values of d, not negative.
        weights: their probabilities.
        V: mean square of the singular values of W.

    Raises:
        ValueError: a slope is negative.

    papers: Agarwala and Schoenholz 2022, C.1, eq. 110-124.
    """
    d, p = _law(slopes, weights)
    used = (p > 0) & (d > 0)
    d, p = d[used], p[used]
    if V == 0 or not d.numel():
        return 0.0
    top = float(d.max())
    d = d / top
    mean = float((p * d).sum())
    # The minimum is where E d^3 / (y - d)^2 = E d; the left side falls with y. In logs of y - 1.
    low, high = math.log(1e-12), math.log(4.0)
    for _ in range(70):
        middle = (low + high) / 2
        y = 1 + math.exp(middle)
        steep = float((p * d**3 / (y - d) ** 2).sum()) > mean
        low, high = (middle, high) if steep else (low, middle)
    y = 1 + math.exp((low + high) / 2)
    return math.sqrt(V * y**2 * float((p * d / (y - d)).sum())) * top


def goe_density(
    points: Tensor | Sequence[float],
    slopes: Tensor | Sequence[float],
    weights: Tensor | Sequence[float],
    V: float,
    *,
    blur: float = 1e-6,
) -> Tensor:
    """Return the density of the eigenvalues of D W, W from the GOE, beside the point mass at 0.

    G(z) = E 1 / (z - V d g) with g = E d / (z - V d g), at z = x + i blur; the density is
    -Im G / pi over d > 0. The point mass is P(d = 0).

    Args:
        points: x, (points,).
        slopes: values of d, not negative.
        weights: their probabilities.
        V: mean square of the singular values of W, positive.
        blur: half-width of the Cauchy kernel that the density is blurred by.

    Returns:
        (points,), float64.

    Raises:
        ValueError: a slope is negative, or V or the blur is not positive.

    papers: Agarwala and Schoenholz 2022, eq. 96-124.
    """
    if not (V > 0 and blur > 0):
        raise ValueError(f"V and blur must be positive, got {V} and {blur}")
    d, p = _law(slopes, weights)
    used = (p > 0) & (d > 0)
    d, p = d[used].to(torch.complex128), p[used].to(torch.complex128)
    x = torch.as_tensor(points, dtype=torch.float64).flatten()
    scale = goe_radius(d.real, p.real, V) or 1.0
    g = torch.zeros_like(x, dtype=torch.complex128)
    height = 4 * scale
    while True:  # down from where the equation contracts to the real line
        height = max(height / 2, blur)
        z = torch.complex(x, torch.full_like(x, height))
        for _ in range(60):
            below = z[:, None] - V * d * g[:, None]
            f = (p * d / below).sum(1) - g
            slope = (p * V * d**2 / below**2).sum(1) - 1
            newton = g - f / slope
            # Newton's step where it keeps to the half-plane, else the average of g and E.
            sound = (newton.imag < 0) & newton.isfinite()
            new = torch.where(sound, newton, g + f / 2)
            change = float((new - g).abs().max() / (1e-300 + new.abs().max()))
            g = new
            if change < 1e-13:
                break
        if height == blur:
            break
    z = torch.complex(x, torch.full_like(x, blur))
    G = (p / (z[:, None] - V * d * g[:, None])).sum(1)
    return -G.imag / math.pi


def _law(
    slopes: Tensor | Sequence[float], weights: Tensor | Sequence[float]
) -> tuple[Tensor, Tensor]:
    d = torch.as_tensor(slopes, dtype=torch.float64).flatten()
    p = torch.as_tensor(weights, dtype=torch.float64).flatten()
    if d.shape != p.shape:
        raise ValueError(f"{d.numel()} slopes have {p.numel()} weights")
    if d.numel() and float(d.min()) < _NEGATIVE:
        raise ValueError(
            f"a slope is negative ({float(d.min()):g}): the spectrum of D W is known for D >= 0"
        )
    return d.clamp(min=0), p


# --- critical -------------------------------------------------------------------------------------

# The scale of the weights at which the fixed point of a wide network stops to be stable.


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
