"""Gaussian moments of activations: closed forms, quadrature, and how it deals with kinks."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from equilibria.theory import ACTIVATIONS, Activation, as_activation, mean_field, spectral_radius
from equilibria.theory.quadrature import gaussian_rule, root

PLACES = [(0.0, 1.0), (0.7, 0.3), (-1.4, 4.0), (3.0, 0.05), (0.2, 90.0)]


@pytest.mark.parametrize("name", ["hard-tanh", "relu", "identity"])
@pytest.mark.parametrize(("mean", "variance"), PLACES)
def test_closed_forms_are_the_integrals(name, mean, variance):
    phi = ACTIVATIONS[name]
    bare = Activation(name, phi.function, phi.derivative, phi.kinks)
    assert phi.moments(mean, variance) == pytest.approx(
        bare.moments(mean, variance), rel=1e-11, abs=1e-12
    )


@pytest.mark.parametrize("name", ["tanh", "erf", "softplus", "gelu", "silu", "sigmoid"])
def test_smooth_activations_against_gauss_hermite(name):
    phi = ACTIVATIONS[name]
    nodes, weights = np.polynomial.hermite_e.hermegauss(120)
    h = 0.3 + 0.8 * torch.from_numpy(nodes)
    weights = torch.from_numpy(weights) / math.sqrt(2 * math.pi)
    expected = [float((weights * f).sum()) for f in (phi(h), phi(h) ** 2, phi.slope(h))]
    assert phi.moments(0.3, 0.64)[:3] == pytest.approx(expected, abs=1e-8)


def test_erf_has_the_arcsine_law():
    found = ACTIVATIONS["erf"].moments(0.0, 3.0).square
    assert found == pytest.approx(2 / math.pi * math.asin(6 / 7), rel=1e-12)


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_derivatives_are_autograds(name):
    phi = ACTIVATIONS[name]
    h = torch.linspace(-3.05, 2.9, 41, dtype=torch.float64)
    torch.testing.assert_close(phi.slope(h), Activation(name, phi.function).slope(h))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_slopes_in_any_mode(mode):
    expected = spectral_radius("sigmoid", "gaussian", 1.0)
    with mode():
        h = torch.linspace(-2.05, 1.9, 9, dtype=torch.float64)
        for phi in ACTIVATIONS.values():
            bare = Activation(phi.name, phi.function)
            torch.testing.assert_close(bare.slope(h), phi.slope(h))
        assert spectral_radius("sigmoid", "gaussian", 1.0) == expected > 0.2


def test_a_slope_that_is_not_known_is_no_zero():
    h = torch.linspace(-2, 2, 5, dtype=torch.float64)
    assert not as_activation(lambda h: torch.full_like(h, 3.0)).slope(h).any()
    cut = as_activation(lambda h: h.detach().tanh())
    for places in (h, h[:1]):
        with pytest.raises(ValueError, match="autograd finds no derivative"):
            cut.slope(places)


def test_modules_and_functions_in_place():
    kinked = Activation("relu in place", nn.ReLU(inplace=True), kinks=(0.0,))
    expected = ACTIVATIONS["relu"].moments(0.3, 2.0)
    assert kinked.moments(0.3, 2.0) == pytest.approx(expected, rel=1e-10)
    assert mean_field(nn.ReLU(inplace=True), "goe", 0.1).output == pytest.approx(
        mean_field("relu", "goe", 0.1).output, rel=1e-3
    )
    leaky = nn.PReLU(init=0.25)
    found = as_activation(leaky)
    assert found.moments(0.0, 1.0)[2:] == pytest.approx((0.625, 0.53125), rel=1e-3)
    h = torch.tensor([-2.0], dtype=torch.float64)
    assert float(found(h)) == -0.5
    assert float(h) == -2
    assert leaky.weight.dtype == torch.float32
    assert leaky.weight.requires_grad


def test_moments_of_no_variance_are_values():
    value = math.tanh(0.4)
    assert ACTIVATIONS["tanh"].moments(0.4, 0.0)[:2] == pytest.approx((value, value**2))


def test_steepest_and_flattest():
    assert ACTIVATIONS["tanh"].steepest == pytest.approx(1)
    assert ACTIVATIONS["gelu"].flattest < -0.1
    assert ACTIVATIONS["relu"].flattest == 0


def test_a_function_is_an_activation():
    phi = as_activation(lambda h: 2 * h)
    assert phi.moments(0.0, 1.0) == pytest.approx((0, 4, 2, 4), abs=1e-12)
    assert as_activation(phi) is phi


def test_wrong_activations_are_named():
    with pytest.raises(ValueError, match="did you mean 'tanh'"):
        as_activation("tahn")
    with pytest.raises(TypeError, match="a name or a function, got int"):
        as_activation(3)


def test_the_rule_sums_to_one():
    for mean, variance in PLACES:
        assert float(gaussian_rule(mean, variance)[1].sum()) == pytest.approx(1, abs=1e-13)
    h, weights = gaussian_rule(0.0, 1.0, kinks=(0.0,))
    assert float((weights * h.abs()).sum()) == pytest.approx(math.sqrt(2 / math.pi))


def test_root():
    assert root(lambda x: x**3 - 2, 0, 2) == pytest.approx(2 ** (1 / 3), rel=1e-13)
    assert root(lambda x: math.atan(x - 5), 1e3, -1e3) == pytest.approx(5, rel=1e-12)
    with pytest.raises(ValueError, match="no change of sign"):
        root(lambda x: x**2 + 1, 0, 1)
