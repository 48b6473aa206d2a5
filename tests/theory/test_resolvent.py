"""The spectrum of (I - W)^-T (I - W)^-1 against that of a matrix, and against its own moments."""

import math

import numpy as np
import pytest
import torch
from linear_draws import weights

from equilibria.theory import (
    length_variance,
    resolvent_density,
    resolvent_edges,
    resolvent_moments,
    resolvent_transform,
    second_moment,
)


def spectrum(V, width):
    w = next(weights("gaussian", V, width))
    return torch.linalg.svdvals(torch.eye(width, dtype=w.dtype) - w).numpy()[::1] ** -2


def integral(V, power):
    """Of x^power under the density; x runs as its logarithm, with nodes that crowd at the edges."""
    low, high = (math.log(edge) for edge in resolvent_edges(V))
    nodes, weight = np.polynomial.chebyshev.chebgauss(4000)
    x = np.exp((low + high) / 2 + (high - low) / 2 * nodes)
    inside = resolvent_density(x, V) * x ** (power + 1) * np.sqrt(1 - nodes**2)
    return float(np.sum(weight * inside) * (high - low) / 2)


@pytest.mark.parametrize("V", [0.05, 0.5, 0.9])
def test_moments(V):
    m = resolvent_moments(6, V)
    assert m[0] == pytest.approx(second_moment("gaussian", V), rel=1e-12)
    assert 2 * m[1] == pytest.approx(length_variance("gaussian", V), rel=1e-12)
    for power in range(7):
        expected = m[power - 1] if power else 1
        assert integral(V, power) == pytest.approx(expected, rel=1e-4)


def test_moments_solve_the_cubic():
    V, z = 0.4, 400.0  # far above the upper edge of 31: the series converges fast
    M = float(np.sum(resolvent_moments(60, V) * z ** -np.arange(1.0, 61)))
    cubic = V**2 * z**2 * M**3 + 2 * V * z * M**2 + ((V - 1) * z + 1) * M + 1  # eq. 188
    assert abs(cubic) < 1e-12
    assert resolvent_transform(z, V) == pytest.approx((1 + M) / z, rel=1e-12)


def test_without_weights_all_moments_are_one():
    assert resolvent_moments(4, 0.0).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("V", [0.3, 0.6])
def test_density_is_the_spectrum_of_a_matrix(V):
    width = 600
    values = np.sort(spectrum(V, width))
    low, high = resolvent_edges(V)
    grid = np.exp(np.linspace(math.log(low), math.log(high), 20_001))
    density = resolvent_density(grid, V)
    parts = (density[1:] + density[:-1]) / 2 * np.diff(grid)
    cumulative = np.concatenate([[0], np.cumsum(parts)])
    assert cumulative[-1] == pytest.approx(1, abs=1e-4)
    # Eigenvalues repel each other: their counts are off by a few of the 600.
    gap = np.abs(np.interp(values, grid, cumulative) - (np.arange(width) + 0.5) / width).max()
    assert gap < 0.01
    assert values[0] == pytest.approx(low, rel=0.05)
    assert resolvent_density([low / 2, 2 * high, -1.0, 0.0], V).tolist() == [0, 0, 0, 0]


def test_upper_edge_grows_like_the_third_power():
    delta = 1e-4
    assert resolvent_edges(1 - delta)[1] == pytest.approx(27 / 4 / delta**3, rel=1e-3)


@pytest.mark.parametrize("V", [0.2, 0.7])
def test_transform_is_the_mean_of_the_resolvent(V):
    low, high = resolvent_edges(V)
    z = np.array([1 + 0.5j, low / 2 + 0.1j, 3 - 2j, high + 1, -0.7, low / 2, 0.02 + 0.01j, -3 + 1j])
    nodes, weight = np.polynomial.chebyshev.chebgauss(20_000)
    x = np.exp(math.log(low * high) / 2 + math.log(high / low) / 2 * nodes)
    mass = weight * np.sqrt(1 - nodes**2) * x * resolvent_density(x, V) * math.log(high / low) / 2
    expected = (mass / (z[:, None] - x)).sum(1)
    found = resolvent_transform(z.reshape(2, 4), V)
    assert found.shape == (2, 4)
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-4)
    values = spectrum(V, 500)
    measured = (1 / (z[0] - values)).mean()
    assert abs(measured - found[0, 0]) < 0.01 * abs(measured)


def test_transform_gives_the_density():
    V = 0.5
    x = np.array([0.3, 1.0, 5.0, 20.0])
    near = -resolvent_transform(x + 1e-9j, V).imag / math.pi
    np.testing.assert_allclose(near, resolvent_density(x, V), rtol=1e-6)


@pytest.mark.parametrize("V", [0.0, 1.0, -0.5, math.nan])
def test_impossible_V(V):
    for call in (
        lambda: resolvent_density(1.0, V),
        lambda: resolvent_transform(1j, V),
        lambda: resolvent_edges(V),
    ):
        with pytest.raises(ValueError, match="V is"):
            call()


def test_impossible_arguments():
    with pytest.raises(ValueError, match="count"):
        resolvent_moments(0, 0.5)
    with pytest.raises(ValueError, match="V is"):
        resolvent_moments(2, 1.0)
    for z in (1.0, 0.0, math.inf):
        with pytest.raises(ValueError, match="off the spectrum"):
            resolvent_transform(z, 0.5)
