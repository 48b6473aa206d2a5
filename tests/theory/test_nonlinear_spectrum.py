"""Edges and densities of W diag(d) against C.1, eigenvalues, and fixed points that were found."""

import math

import pytest
import torch
from nonlinear_draws import DAMPING, inputs, matrix, settle

from equilibria.theory import (
    NoMeanFieldError,
    as_activation,
    goe_density,
    goe_radius,
    mean_field,
    spectral_radius,
)


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
def test_hard_tanh_edge_is_c1s(share):
    found = goe_radius([0.0, 1.0], [1 - share, share], 2.0)
    assert found == pytest.approx(2 * math.sqrt(2 * share), rel=1e-10)


def test_hard_tanh_density_is_c1s():
    share, V = 0.3, 2.0
    x = torch.linspace(-2, 2, 21, dtype=torch.float64)
    semicircle = (4 * share * V - x**2).clamp(min=0).sqrt() / (2 * math.pi * V)
    found = goe_density(x, [0.0, 1.0], [1 - share, share], V)
    torch.testing.assert_close(found, semicircle, atol=1e-5, rtol=0)


def test_density_and_edge_of_tanh_against_eigenvalues():
    field = mean_field("tanh", "goe", 0.25)
    slopes = field.slopes()
    radius = goe_radius(slopes.values, slopes.weights, 0.25)
    edges = torch.linspace(-radius, radius, 9, dtype=torch.float64)
    middles = torch.linspace(-radius, radius, 161, dtype=torch.float64)
    middles = (middles[1:] + middles[:-1]) / 2
    density = goe_density(middles, slopes.values, slopes.weights, 0.25)
    predicted = density.reshape(8, 20).mean(1) * (edges[1] - edges[0])
    assert float(predicted.sum()) == pytest.approx(1, abs=0.01)
    x = inputs(0.0, 0)
    W = 0.5 * matrix("goe", 0)
    h, _ = settle("tanh", W, x, "outside", DAMPING["goe"])
    d = as_activation("tanh").slope(h).sqrt()
    values = torch.linalg.eigvalsh(d[:, :, None] * W * d[:, None, :])
    counts = torch.histc(values.clamp(-radius, radius), 8, -radius, radius) / values.numel()
    torch.testing.assert_close(predicted, counts, atol=0.01, rtol=0)
    assert float(values.abs().amax(1).mean()) == pytest.approx(radius, rel=0.05)


def test_a_slope_scales_and_orders():
    weights = [0.2, 0.5, 0.3]
    one = goe_radius([0.1, 0.5, 0.9], weights, 1.0)
    assert goe_radius([0.3, 1.5, 2.7], weights, 1.0) == pytest.approx(3 * one, rel=1e-9)
    assert goe_radius([0.1, 0.5, 0.9], weights, 4.0) == pytest.approx(2 * one, rel=1e-9)
    assert goe_radius([0.1, 0.5, 1.0], weights, 1.0) > one
    assert goe_radius([0.0], [1.0], 1.0) == 0


@pytest.mark.parametrize(
    ("ensemble", "scale", "near"),
    [
        ("gaussian", 1.2, 0.08),
        ("orthogonal", 1.2, 0.08),
        ("goe", 0.5, 0.04),
        ("antisymmetric", 0.8, 0.04),
        ("normal", 0.8, 0.1),
    ],
)
def test_radius_at_fixed_points(ensemble, scale, near):
    W = scale * matrix(ensemble, 0)
    h, _ = settle("hard-tanh", W, inputs(0.0, 0, count=2), "outside", DAMPING[ensemble])
    found = []
    for sample in h:
        on = sample.abs() < 1  # columns of zeros add zeros to the spectrum
        found.append(float(torch.linalg.eigvals(W[on][:, on]).abs().max()))
    predicted = spectral_radius("hard-tanh", ensemble, scale**2)
    assert predicted == pytest.approx(sum(found) / 2, rel=near)


def test_linear_radii():
    for ensemble, radius in (("gaussian", 0.4), ("goe", 0.8), ("normal", 0.4 * math.sqrt(2))):
        found = spectral_radius("identity", ensemble, 0.16)
        assert found == pytest.approx(radius, rel=1e-6)


def test_the_papers_own_theory_of_goe():
    inside = mean_field("hard-tanh", "gaussian", 0.16).slopes().mean(lambda d: d)
    found = spectral_radius("hard-tanh", "goe", 0.16, reaction=False)
    assert found == pytest.approx(2 * math.sqrt(0.16 * inside), rel=1e-9)
    assert found > spectral_radius("hard-tanh", "goe", 0.16)


def test_beyond_the_transition_there_is_no_spectrum():
    assert spectral_radius("hard-tanh", "goe", 1.0) < 1
    with pytest.raises(NoMeanFieldError, match="beyond its transition"):
        spectral_radius("hard-tanh", "goe", 1.5)


def test_activations_that_turn_back_are_refused():
    with pytest.raises(ValueError, match="gelu is not monotone"):
        spectral_radius("gelu", "goe", 0.1)
    assert spectral_radius("gelu", "gaussian", 0.1) > 0
    with pytest.raises(ValueError, match="a slope is negative"):
        goe_radius([-0.1, 1.0], [0.5, 0.5], 1.0)
    with pytest.raises(ValueError, match="2 slopes have 1 weights"):
        goe_radius([0.1, 1.0], [1.0], 1.0)
    with pytest.raises(ValueError, match="must be positive"):
        goe_density([0.0], [1.0], [1.0], 1.0, blur=0.0)
