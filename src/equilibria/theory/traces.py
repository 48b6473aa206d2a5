"""What a linear network with untied weights sees of their ensemble: five normalised traces."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from equilibria.nn.init import Ensemble, check_ensemble

# --- families -------------------------------------------------------------------------------------

# What a wide network sees of its weights' ensemble: two of its free cumulants.
#
# The pre-activation of a unit, h = W z, is a Gaussian field plus what comes back of the unit's own
# output z through the others (Onsager's reaction). Of a rotationally invariant W two numbers
# decide:
#
# - the reaction: h = xi + tau V chi z, chi the response E dz/dxi. tau V is the normalised trace of
#   W^2: tau = 1 where W is symmetric, -1 where antisymmetric, 0 where powers of W are traceless;
# - what is carried over: the field's covariance for two inputs is S(chi chi') E z z'. S = V where W
#   mixes freely with its transpose. Where W commutes with it and has a round spectrum,
#   S(t) = (1 - 1/M(t)) / t with M(t) = E 1 / (1 - t |lambda|^2).
#
# Derived for `equilibria`, beyond Agarwala and Schoenholz 2022: Theorem 3.1 is tau = 0, S = V. The
# tests check each ensemble by Monte Carlo.


_REACTION = {"goe": 1, "antisymmetric": -1}


def check_family(ensemble: str, V: float) -> None:
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


def carry_over(ensemble: str, V: float, product: float) -> float:
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
        grows = square * carry_over(ensemble, V, mean**2 / middle) > middle
        low, high = (middle, high) if grows else (low, middle)
    return math.sqrt((low + high) / 2)


# --- traces ---------------------------------------------------------------------------------------


Spectrum = ArrayLike


@dataclass(frozen=True, kw_only=True)
class Traces:
    """Normalised traces tr = Tr / N of a wide random matrix W.

    Attributes:
        first: tr W.
        square: tr W^2.
        V: tr W^T W, the average squared singular value.
        third: tr W^T W W.
        fourth: tr (W^T W)^2.
    """

    V: float
    first: float = 0.0
    square: float = 0.0
    third: float = 0.0
    fourth: float


def eigenvalues(spectrum: Spectrum, V: float) -> np.ndarray:
    """Return a spectrum scaled so that the mean of |lambda|^2 is V: (count,) complex.

    Args:
        spectrum: eigenvalues up to a common factor; of a real matrix, so with their conjugates.
        V: average squared singular value.

    Raises:
        ValueError: it is empty, not finite, all zero, or has one without its conjugate.
    """
    values = np.asarray(spectrum, dtype=np.complex128).ravel()
    square = float(np.mean(np.abs(values) ** 2)) if values.size else 0.0
    if not (math.isfinite(square) and square > 0):
        raise ValueError("a spectrum is one or more finite eigenvalues that are not all zero")
    if not _closed(values):
        raise ValueError(
            "a real matrix has with each eigenvalue a + ib its conjugate a - ib, and this "
            "spectrum has some without"
        )
    return values * math.sqrt(V / square)


def _closed(values: np.ndarray) -> bool:
    """Whether eigenvalues are those of a real matrix, to rounding."""
    slack = 1e-7 * float(np.abs(values).max())
    height = np.imag(values)
    upper, lower = values[height > slack], np.conj(values[height < -slack])
    if upper.size != lower.size:
        return False
    # In the order of their real parts, in which rounding must not part two that are equal: in steps
    # that begin off the round numbers.
    upper, lower = (
        part[np.lexsort([np.imag(part), np.floor(np.real(part) / slack + 0.123)])]
        for part in (upper, lower)
    )
    return bool((np.abs(upper - lower) <= 2 * slack).all())


def traces(ensemble: Ensemble, V: float, spectrum: Spectrum | None = None) -> Traces:
    """Return the traces of an ensemble in the limit of many units.

    Args:
        ensemble: its name.
        V: average squared singular value, not negative.
        spectrum: of "normal", as `eigenvalues` takes it; None for the disk of radius sqrt(2 V).

    Raises:
        ValueError: there is no such ensemble, V is negative or not finite, or a spectrum is given
            to an ensemble that has its own.
    """
    check_spectrum(ensemble, V, spectrum)
    if spectrum is not None:
        values = eigenvalues(spectrum, V)
        return Traces(
            V=V,
            first=float(np.real(values).mean()),
            square=float(np.real(values**2).mean()),
            third=float(np.real(np.abs(values) ** 2 * values).mean()),
            fourth=float((np.abs(values) ** 4).mean()),
        )
    if ensemble == "orthogonal":
        return Traces(V=V, fourth=V**2)
    if ensemble == "normal":  # |lambda|^2 is uniform on [0, 2V]
        return Traces(V=V, fourth=4 * V**2 / 3)
    # The singular values of the others follow the quarter circle: 2 is its Catalan number.
    square = {"goe": V, "antisymmetric": -V}.get(ensemble, 0.0)
    return Traces(V=V, square=square, fourth=2 * V**2)


def critical_V(ensemble: Ensemble, *, tied: bool = True, spectrum: Spectrum | None = None) -> float:
    """Return V_c, from which on plain iteration z <- W z + x no longer converges.

    Tied weights: the spectral radius of W is 1. That is V = 1 for Gaussian and orthogonal W, 1/4
    for GOE and antisymmetric W, whose radius is 2 sqrt(V), and mean |lambda|^2 / max |lambda|^2
    for a normal W, 1/2 for the disk. The solution (I - W)^-1 x of an antisymmetric or orthogonal W
    is well behaved beyond; a solver that is not plain iteration finds it.
    Untied weights: mean squares no longer settle, V = 1 for all.

    Args:
        ensemble: its name.
        tied: one W for all steps, or a new one each.
        spectrum: of "normal", as for `traces`.

    Raises:
        ValueError: as for `traces`.

    papers: Agarwala and Schoenholz 2022, sections 2.1.2 and A.3.
    """
    check_spectrum(ensemble, 1.0, spectrum)
    if not tied:
        return 1.0
    if spectrum is not None:
        return float(1 / np.max(np.abs(eigenvalues(spectrum, 1.0))) ** 2)
    return {"goe": 0.25, "antisymmetric": 0.25, "normal": 0.5}.get(ensemble, 1.0)


def check_spectrum(ensemble: Ensemble, V: float, spectrum: Spectrum | None) -> None:
    """Raise ValueError for an unknown ensemble, an impossible V, or a spectrum out of place."""
    check_family(ensemble, V)
    if spectrum is not None and ensemble != "normal":
        raise ValueError(f"{ensemble} matrices have a spectrum of their own: leave `spectrum` out")
