"""The spectrum of (I - W)^-T (I - W)^-1 for wide Gaussian W, from one cubic equation.

Its moment generating function M(z) = sum over k >= 1 of m_k z^-k, m_k = tr of the k-th power,
solves M (1 + V z M)^2 = (1 - V) z M - 1, which is eq. 188 in fewer terms. With u = z M,

    z = u (1 + V u)^2 / ((1 - V) u - 1)

and the points at which dz/du is zero are real: the edges of the spectrum, and nothing else, are
where two solutions meet.

papers: Agarwala and Schoenholz 2022, appendix C.2.2.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike


def resolvent_moments(count: int, V: float) -> np.ndarray:
    """Return m_1, ..., m_count, m_k = tr ((I - W)^-T (I - W)^-1)^k for Gaussian W.

    u = m_1 + m_2 w + m_3 w^2 + ... solves (1 - V) u = 1 + w u (1 + V u)^2, power by power of w:
    m_1 = 1 / (1 - V), m_2 = 1 / (1 - V)^4.

    Args:
        count: number of moments, at least 1.
        V: N times the variance of the weights, in [0, 1).

    Returns:
        (count,) in float64.

    Raises:
        ValueError: an argument is outside.

    papers: Agarwala and Schoenholz 2022, eq. 188-191.
    """
    _check(V, zero=True)
    if count < 1:
        raise ValueError(f"count is {count}: expected 1 or more")
    moments = np.zeros(count)
    moments[0] = 1 / (1 - V)
    for k in range(1, count):
        known = moments[:k]
        inner = V * known
        inner[0] += 1
        square = np.convolve(inner, inner)[:k]
        moments[k] = np.convolve(known, square)[k - 1] / (1 - V)
    return moments


def resolvent_edges(V: float) -> tuple[float, float]:
    """Return the ends of the spectrum of (I - W)^-T (I - W)^-1 for wide Gaussian W.

    They are z at the two roots of 2 (1 - V) V u^2 = 3 V u + 1. The upper one grows like
    27 / (4 (1 - V)^3) as V goes to 1.

    Args:
        V: N times the variance of the weights, in (0, 1).

    Raises:
        ValueError: V is outside.
    """
    _check(V)
    root = math.sqrt(V * (V + 8))
    ends = [(3 * V + sign * root) / (4 * V * (1 - V)) for sign in (-1, 1)]
    low, high = (u * (1 + V * u) ** 2 / ((1 - V) * u - 1) for u in ends)
    return low, high


def resolvent_density(x: ArrayLike, V: float) -> np.ndarray:
    """Return the density of the eigenvalues of (I - W)^-T (I - W)^-1 for wide Gaussian W.

    -Im G(x + 0i) / pi = |Im u| / (pi x^2), u from the cubic's one pair of complex roots by
    Cardano's formula; zero outside the edges.

    Args:
        x: places, of any shape.
        V: N times the variance of the weights, in (0, 1).

    Returns:
        Density, of the shape of x.

    Raises:
        ValueError: V is outside.

    papers: Agarwala and Schoenholz 2022, eq. 97 and 188.
    """
    low, high = resolvent_edges(V)
    places = np.asarray(x, dtype=np.float64)
    inside = (places > low) & (places < high)
    z = np.where(inside, places, low)
    # u = t - 2 / (3V) takes the square out of the cubic: t^3 + p t + q = 0.
    p = (1 - (1 - V) * z) / V**2 - 4 / (3 * V**2)
    q = z / V**2 - 2 * (1 - (1 - V) * z) / (3 * V**3) + 16 / (27 * V**3)
    root = np.sqrt(np.maximum(q**2 / 4 + p**3 / 27, 0))
    large = np.cbrt(-q / 2 - np.copysign(root, q))  # the other one by division: no cancellation
    small = -p / (3 * np.where(large == 0, 1, large))
    height = math.sqrt(3) / 2 * np.abs(large - small)
    return np.where(inside, height / (math.pi * z**2), 0)


def resolvent_transform(z: ArrayLike, V: float) -> np.ndarray:
    """Return the Stieltjes transform G(z) = tr (z - A)^-1, A = (I - W)^-T (I - W)^-1, W Gaussian.

    G = (1 + M) / z. Of the cubic's three solutions far above the real axis one is near its limit
    u = m_1; it is followed down to z in steps. No two meet on the way, since edges are real.

    Args:
        z: complex numbers off the spectrum, of any shape.
        V: N times the variance of the weights, in (0, 1).

    Returns:
        G, complex, of the shape of z.

    Raises:
        ValueError: V is outside, or z lies on the spectrum or is not finite.

    papers: Agarwala and Schoenholz 2022, eq. 96, 98 and 188.
    """
    low, high = resolvent_edges(V)
    places = np.asarray(z, dtype=np.complex128)
    flat = places.ravel()
    real, imag = np.real(flat), np.imag(flat)
    on = (imag == 0) & ((real >= low) & (real <= high) | (real == 0))
    if on.any() or not np.isfinite(flat).all():
        raise ValueError(f"z must be finite, not 0 and off the spectrum [{low:.6g}, {high:.6g}]")
    goal = np.abs(imag)  # G of the conjugate is the conjugate of G
    above = real + 1j * goal
    heights = 1e3 * (high + np.abs(above))
    least = 1e-9 * np.minimum(low, np.abs(above))
    u = np.full(flat.shape, 1 / (1 - V), dtype=np.complex128)
    while True:
        arrived = heights <= np.maximum(goal, least)
        at = np.where(arrived, above, real + 1j * heights)
        roots = _roots(at, V)
        nearest = np.abs(roots - u[:, None]).argmin(1)
        u = np.take_along_axis(roots, nearest[:, None], 1)[:, 0]
        if arrived.all():
            break
        heights = 0.8 * heights
    found = (1 + u / above) / above
    return np.where(imag < 0, np.conj(found), found).reshape(places.shape)


def _roots(z: np.ndarray, V: float) -> np.ndarray:
    """The three u of each z, (count, 3): eigenvalues of the cubic's companion matrix."""
    companion = np.zeros((z.size, 3, 3), dtype=np.complex128)
    companion[:, 1, 0] = companion[:, 2, 1] = 1
    companion[:, 0, 0] = -2 / V
    companion[:, 0, 1] = -(1 - (1 - V) * z) / V**2
    companion[:, 0, 2] = -z / V**2
    return np.linalg.eigvals(companion)


def _check(V: float, *, zero: bool = False) -> None:
    if not (0 < V < 1 or (zero and V == 0)):
        raise ValueError(f"V is {V}: expected a number in {'[' if zero else '('}0, 1)")
