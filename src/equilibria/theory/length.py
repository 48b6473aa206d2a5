"""Length variance of linear equilibrium networks: how much |z*| depends on what is put in.

For z = M x with x Gaussian, of mean 0 and variance 1, the length variance is
sigma^2 = E_M Var_x[z . z] / N^2 = (2 / N) E tr (M^T M)^2, tr = Tr / N. The functions here return
N sigma^2 in the limit of many units; an input variance s multiplies it by s^2.
"""

from __future__ import annotations

import math

from equilibria.nn.init import Ensemble
from equilibria.theory.linear import mean_power
from equilibria.theory.traces import Spectrum, Traces, check_spectrum, traces

__all__ = ["length_variance", "length_variance_exponent"]


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
        return 2 * untied_fourth_moment(traces(ensemble, V, spectrum))
    if spectrum is not None:
        return 2 * mean_power(spectrum, V, -4)
    if ensemble == "antisymmetric":
        return 2 / math.sqrt(1 + 4 * V)
    if ensemble == "orthogonal":
        return 2 * (1 + V) / abs(1 - V) ** 3 if V != 1 else math.inf
    rate, power = {"gaussian": (1, 4), "goe": (4, 2.5), "normal": (2, 2)}[ensemble]
    left = 1 - rate * V
    return 2 / left**power if left > 0 else math.inf


def untied_fourth_moment(w: Traces) -> float:
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
