"""What a wide network sees of its weights' ensemble: two of its free cumulants.

The pre-activation of a unit, h = W z, is a Gaussian field plus what comes back of the unit's own
output z through the others (Onsager's reaction). Of a rotationally invariant W two numbers decide:

- the reaction: h = xi + tau V chi z, chi the response E dz/dxi. tau V is the normalised trace of
  W^2: tau = 1 where W is symmetric, -1 where antisymmetric, 0 where powers of W are traceless;
- what is carried over: the field's covariance for two inputs is S(chi chi') E z z'. S = V where W
  mixes freely with its transpose. Where W commutes with it and has a round spectrum,
  S(t) = (1 - 1/M(t)) / t with M(t) = E 1 / (1 - t |lambda|^2).

Derived for `equilibria`, beyond Agarwala and Schoenholz 2022: Theorem 3.1 is tau = 0, S = V. The
tests check each ensemble by Monte Carlo.
"""

from __future__ import annotations

import math

from equilibria.nn.init import check_ensemble

__all__ = ["carried", "check", "edge", "reaction"]

_REACTION = {"goe": 1, "antisymmetric": -1}


def check(ensemble: str, V: float) -> None:
    """Raise ValueError where there is no such ensemble or V is no variance."""
    check_ensemble(ensemble)
    if not (math.isfinite(V) and V >= 0):
        raise ValueError(f"V, the mean square of the singular values, must be >= 0, got {V}")


def reaction(ensemble: str) -> int:
    """Return tau, the normalised trace of W^2 over V.

    Args:
        ensemble: name of the ensemble.
    """
    return _REACTION.get(ensemble, 0)


def carried(ensemble: str, V: float, product: float) -> float:
    """Return S, the field's covariance over E z z'.

    Args:
        ensemble: name of the ensemble; "normal" with eigenvalues uniform on the disk of radius
            sqrt(2 V), for which S(t) = 1/t + 2V / log(1 - 2Vt).
        V: mean square of the singular values.
        product: t = chi chi', the responses for the two inputs. At 2 V t >= 1 the "normal" network
            does not pass a signal on without end, and the value returned is the limit 1/t.
    """
    t = product
    if ensemble != "normal":
        return V
    x = 2 * V * t
    if abs(x) < 1e-4:  # the two terms cancel
        return V * (1 + x / 6 + x * x / 12)
    if x >= 1:
        return 1 / t
    return 1 / t + 2 * V / math.log1p(-x)


def edge(ensemble: str, V: float, mean: float, square: float) -> float:
    """Return the spectral radius of W diag(d) with d independent of W, which is not symmetric.

    It is where a perturbation of growth r no longer dies out: E[d^2] S(E[d]^2 / r^2) = r^2. For
    "normal" it is an estimate from below: eigenvalues of matrices of 100 to 1,200 units stick out
    by some 4 %, and this shrinks slowly, if at all.

    Args:
        ensemble: any but "goe" and "antisymmetric".
        V: mean square of the singular values.
        mean: E d.
        square: E d^2.
    """
    plain = math.sqrt(V * square)
    if ensemble != "normal" or plain == 0:
        return plain
    # r^2 is below 2 V E[d^2], the disk's own; S falls as r grows.
    low, high = 2 * V * mean**2, 2 * V * square * (1 + 1e-12)
    for _ in range(100):
        middle = (low + high) / 2
        grows = square * carried(ensemble, V, mean**2 / middle) > middle
        low, high = (middle, high) if grows else (low, middle)
    return math.sqrt((low + high) / 2)
