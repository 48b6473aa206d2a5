"""Second moments of linear equilibrium networks, z* = W z* + x.

Averages over the weights in the limit of many units, tr = Tr / N. At any finite size Gaussian and
GOE matrices have, rarely, an eigenvalue at 1, and the average over draws does not exist: what is to
be compared with these formulas is one draw, or a median.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from equilibria.nn.init import Ensemble
from equilibria.theory.traces import Spectrum, check_spectrum, eigenvalues, traces

__all__ = [
    "gaussian_limit",
    "second_moment",
    "second_moment_after",
    "second_moment_exponent",
]


def second_moment(
    ensemble: Ensemble, V: float, *, tied: bool = True, spectrum: Spectrum | None = None
) -> float:
    """Return E[z* . z*] / (x . x); N Var[z*_i] / (x . x) is that less one.

    Tied weights, E tr (I - W)^-T (I - W)^-1:

    - gaussian: 1 / (1 - V) below V = 1;
    - orthogonal: 1 / |1 - V|, beyond V = 1 too, where plain iteration diverges;
    - goe: 2/s - (1 - s)/(2V) with s = sqrt(1 - 4V), below V = 1/4;
    - antisymmetric: (sqrt(1 + 4V) - 1) / (2V), at any V;
    - normal: mean of |1 - lambda|^-2 over its eigenvalues; -log(1 - 2V) / (2V) for those of the
      disk, below V = 1/2.

    Untied weights, z_{t+1} = W_t z_t + x with a new W_t each step, in the limit of many steps:
    1 / (1 - V) for every ensemble of trace zero, (1 + w) / ((1 - w)(1 - V)) with w = tr W.

    Args:
        ensemble: its name.
        V: average squared singular value of W, not negative.
        tied: one W for all steps, or a new one each.
        spectrum: of "normal": eigenvalues up to a common factor, with their conjugates, which are
            scaled so that the mean of |lambda|^2 is V; None for those that fill a disk evenly.

    Returns:
        The moment; infinite where it diverges.

    Raises:
        ValueError: there is no such ensemble, V is negative or not finite, or a spectrum is given
            to an ensemble that has its own.

    papers: Agarwala and Schoenholz 2022, eq. 8 and 60 (gaussian, orthogonal), 57 (untied), and 11
    and 66 (goe), corrected: as printed the variance is negative. The others are derived here.
    """
    check_spectrum(ensemble, V, spectrum)
    if not tied:
        if V >= 1:
            return math.inf
        w = traces(ensemble, V, spectrum).first
        return (1 + w) / ((1 - w) * (1 - V))
    if spectrum is not None:
        return mean_power(spectrum, V, -2)
    if ensemble == "goe":
        s = math.sqrt(max(0.0, 1 - 4 * V))
        return 2 / (s * (1 + s)) if s else math.inf  # as above, without 0/0 at V = 0
    if ensemble == "antisymmetric":
        return 2 / (1 + math.sqrt(1 + 4 * V))
    if ensemble == "normal":
        if V >= 0.5:
            return math.inf
        return -math.log1p(-2 * V) / (2 * V) if V else 1.0
    if V == 1 or (V > 1 and ensemble == "gaussian"):
        return math.inf
    return 1 / abs(1 - V)


def mean_power(spectrum: Spectrum, V: float, power: int) -> float:
    """Return the mean of |1 - lambda|^power over a spectrum; infinite where it touches 1."""
    distance = np.abs(1 - eigenvalues(spectrum, V))
    return float((distance**power).mean()) if distance.all() else math.inf


def second_moment_after(steps: int, V: float) -> float:
    """Return E[z_t . z_t] / (x . x) after t steps from z_0 = 0: (1 - V^t) / (1 - V).

    Infinite where it is larger than a float64 can be.

    For Gaussian W, tied or untied, and any untied ensemble of trace zero.

    Args:
        steps: t, not negative.
        V: average squared singular value of W, not negative; may be above 1.

    Raises:
        ValueError: an argument is negative, V not finite, or t no whole number.

    papers: Agarwala and Schoenholz 2022, eq. 48, and 7, corrected: the variance is the sum of V^k
    over k = 1, ..., t - 1.
    """
    check_spectrum("gaussian", V, None)
    if not (math.isfinite(steps) and steps >= 0 and steps == math.floor(steps)):
        raise ValueError(f"steps is {steps}: expected a whole number, 0 or more")
    if V == 1:
        return float(steps)
    try:
        return (1 - float(V) ** int(steps)) / (1 - V)
    except OverflowError:
        return math.inf


def second_moment_exponent(ensemble: Ensemble, *, tied: bool = True) -> float:
    """Return p of the second moment's divergence delta^p, delta = 1 - V / V_c.

    Tied: -1/2 for goe, -1 for gaussian and orthogonal; 0 for antisymmetric, which stays finite, and
    for the normal matrices of the disk, which diverge like a logarithm. Untied: -1.

    Args:
        ensemble: its name.
        tied: one W for all steps, or a new one each.

    Raises:
        ValueError: there is no such ensemble.

    papers: Agarwala and Schoenholz 2022, section 2.1.2.
    """
    check_spectrum(ensemble, 1.0, None)
    return {"goe": -0.5, "antisymmetric": 0.0, "normal": 0.0}.get(ensemble, -1.0) if tied else -1.0


def gaussian_limit(x: ArrayLike, V: float) -> tuple[np.ndarray, float]:
    """Return the mean and the variance of the units' Gaussian law in a wide network.

    As N grows, z*_i goes in distribution to N(x_i, V / (1 - V) x . x / N); over the draws of a
    Gaussian W, tied or untied.

    Args:
        x: input, of shape (N,).
        V: N times the variance of the weights, in [0, 1).

    Returns:
        The means, (N,), which are x, and the variance, one for all units.

    Raises:
        ValueError: V is outside, or x is not one vector with entries.

    papers: Agarwala and Schoenholz 2022, Theorem A.2 and eq. 8. Its eq. 47 gives the second moment
    as x . x / (N (1 - V)) for each unit, which is true of their average: x_i^2 is the i-th part.
    """
    check_spectrum("gaussian", V, None)
    if V >= 1:
        raise ValueError(f"V is {V}: from 1 on, Gaussian weights have no such limit")
    mean = np.asarray(x, dtype=np.float64).copy()
    if mean.ndim != 1 or not mean.size:
        raise ValueError(f"x has shape {mean.shape}: expected one vector of N entries")
    return mean, V / (1 - V) * float(mean @ mean) / mean.size
