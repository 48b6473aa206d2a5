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
from equilibria.theory.traces import Spectrum, Traces, check_spectrum, eigenvalues, traces


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


# --- length ---------------------------------------------------------------------------------------

# Length variance of linear equilibrium networks: how much |z*| depends on what is put in.
#
# For z = M x with x Gaussian, of mean 0 and variance 1, the length variance is
# sigma^2 = E_M Var_x[z . z] / N^2 = (2 / N) E tr (M^T M)^2, tr = Tr / N. The functions here return
# N sigma^2 in the limit of many units; an input variance s multiplies it by s^2.


def length_variance(
    ensemble: Ensemble, V: float, *, tied: bool = True, spectrum: Spectrum | None = None
) -> float:
    """Return N sigma^2 of z*, 2 E tr (M^T M)^2, at input variance 1.

    Tied weights, M = (I - W)^-1:

    - gaussian: 2 / (1 - V)^4 below V = 1;
    - orthogonal: 2 (1 + V) / |1 - V|^3, beyond V = 1 too, where plain iteration diverges;
    - goe: 2 / (1 - 4V)^(5/2) below V = 1/4;
    - antisymmetric: 2 / sqrt(1 + 4V) at any V;
    - normal: mean of 2 |1 - lambda|^-4 over its eigenvalues; 2 / (1 - 2V)^2 for those of the disk,
      below V = 1/2.

    Untied weights, M_{t+1} = I + W_t M_t with a new W_t each step, in the limit of many steps, for
    tr W = 0 and b = 1 / (1 - V):

        N sigma^2 = 2 (1 + 4 V b + 2 tr W^2 + (tr (W^T W)^2 - V^2) b^2) / (1 - V^2)

    - orthogonal: 2 (1 + 3V) / ((1 - V)^2 (1 + V)), the printed formula;
    - gaussian: V^2 b^2 is added to 1 + 4 V b;
    - goe: V^2 b^2 and 2 V are added;
    - antisymmetric: V^2 b^2 is added, 2 V subtracted;
    - normal, of the disk: V^2 b^2 / 3 is added; any other spectrum by its moments.

    The paper's sum over products of one to t matrices takes two of different lengths for free of
    each other. They share their first factors, as the orthogonal ensemble alone does not notice.

    Args:
        ensemble, V, tied, spectrum: as for `equilibria.theory.second_moment`.

    Returns:
        N sigma^2; infinite where it diverges.

    Raises:
        ValueError: as for `equilibria.theory.second_moment`.

    papers: Agarwala and Schoenholz 2022, eq. 18 and 79 (orthogonal), 19 and 191 (gaussian), 20 and
    148 (goe, the former corrected), 15 and 77 (orthogonal, untied). Eq. 14 and 76 (gaussian and
    goe, untied) are wrong as printed; those and the other ensembles are derived here.
    """
    check_spectrum(ensemble, V, spectrum)
    if not tied:
        return 2 * fourth_moment_untied(traces(ensemble, V, spectrum))
    if spectrum is not None:
        return 2 * mean_power(spectrum, V, -4)
    if ensemble == "antisymmetric":
        return 2 / math.sqrt(1 + 4 * V)
    if ensemble == "orthogonal":
        return 2 * (1 + V) / abs(1 - V) ** 3 if V != 1 else math.inf
    rate, power = {"gaussian": (1, 4), "goe": (4, 2.5), "normal": (2, 2)}[ensemble]
    left = 1 - rate * V
    return 2 / left**power if left > 0 else math.inf


def fourth_moment_untied(w: Traces) -> float:
    """Return the limit of tr (M^T M)^2 over M <- I + W M with a new W each step.

    W is free of M. Each trace over M obeys a linear equation of its own: one step leaves it alone.

    Args:
        w: traces of W.
    """
    if w.V >= 1:
        return math.inf
    mean = 1 / (1 - w.first)  # tr M
    b = (1 + w.first) * mean / (1 - w.V)  # tr M^T M
    # For W free of A and B: tr W A W B = tr W^2 tr A tr B + (tr W)^2 (tr A B - tr A tr B).
    # tr (W M)^2 = (tr W^2 - (tr W)^2) (tr M)^2 + (tr W)^2 tr M^2, M^2 = I + 2 W M + (W M)^2
    product = (w.square - w.first**2) * mean**2 + w.first**2 * (1 + 2 * w.first * mean)
    product = product / (1 - w.first**2)
    # c = tr M^T M M = 1 + 3 tr W M + 2 V b + tr (W M)^2 + d, and d = tr (W M)^T (W M) (W M).
    split = (w.third - w.first * w.V) * b * mean
    c = (1 + 3 * w.first * mean + 2 * w.V * b + product + split) / (1 - w.first * w.V)
    d = split + w.first * w.V * c
    sides = 1 + 4 * w.first * mean + 4 * w.V * b + 2 * product + 4 * d
    return (sides + (w.fourth - w.V**2) * b**2) / (1 - w.V**2)


def length_variance_exponent(ensemble: Ensemble, *, tied: bool = True) -> float:
    """Return p of the length variance's divergence delta^p, delta = 1 - V / V_c.

    Tied: -4 for gaussian, -3 for orthogonal, -5/2 for goe, -2 for the normal matrices of the disk,
    0 for antisymmetric, which stays finite. Untied: -2 for orthogonal, -3 for all others.

    Args:
        ensemble: its name.
        tied: one W for all steps, or a new one each.

    Raises:
        ValueError: there is no such ensemble.

    papers: Agarwala and Schoenholz 2022, section 2.2.3, whose -2 for all untied ensembles is true
    of the orthogonal one.
    """
    check_spectrum(ensemble, 1.0, None)
    if not tied:
        return -2.0 if ensemble == "orthogonal" else -3.0
    return {"gaussian": -4.0, "orthogonal": -3.0, "goe": -2.5, "normal": -2.0}.get(ensemble, 0.0)
