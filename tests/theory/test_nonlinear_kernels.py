"""NNGP and tangent kernels against networks of 300 units, and the derivative against autograd."""

import math

import pytest
import torch
from nonlinear_draws import DAMPING, matrix, settle

from equilibria.theory import (
    NoMeanFieldError,
    Pair,
    as_activation,
    linear_nngp,
    linear_ntk,
    mean_field,
    nngp,
    ntk,
    second_moment,
)

WIDTH, DRAWS, PAIRS = 300, 2, 8


def pairs(means, product, seed):
    """Inputs two by two, of exactly these means and this covariance, (PAIRS, 2, WIDTH)."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(PAIRS, WIDTH, 3, generator=generator, dtype=torch.float64)
    x[:, :, 0] = 1
    x = torch.linalg.qr(x)[0][:, :, 1:].mT * math.sqrt(WIDTH)
    x[:, 1] = product * x[:, 0] + math.sqrt(1 - product**2) * x[:, 1]
    return x + torch.tensor(means)[:, None]


def measured(activation, ensemble, scale, injection, means):
    """K and Theta / N, means over draws and pairs."""
    phi = as_activation(activation)
    overlaps, tangents = [], []
    eye = torch.eye(WIDTH, dtype=torch.float64)
    for seed in range(DRAWS):
        W = scale * matrix(ensemble, seed, WIDTH)
        x = pairs(means, 0.6, seed)
        h, z = settle(activation, W, x.flatten(0, 1), injection, DAMPING[ensemble])
        D = torch.diag_embed(phi.slope(h))
        R = torch.linalg.solve(eye - D @ W, D).unflatten(0, (PAIRS, 2))
        overlap = z.unflatten(0, (PAIRS, 2)).prod(1).mean(1)
        overlaps.append(overlap)
        tangents.append(R.prod(1).sum((1, 2)) / WIDTH * overlap)
    return float(torch.cat(overlaps).mean()), float(torch.cat(tangents).mean())


@pytest.mark.parametrize(
    ("activation", "ensemble", "scale", "injection", "means"),
    [
        ("tanh", "gaussian", 0.8, "outside", (0.0, 0.0)),
        ("hard-tanh", "gaussian", 0.8, "inside", (0.3, -0.2)),
        ("tanh", "orthogonal", 1.0, "outside", (0.3, -0.2)),
        ("tanh", "goe", 0.5, "outside", (0.3, -0.2)),
        ("hard-tanh", "goe", 0.5, "inside", (0.0, 0.0)),
        ("tanh", "antisymmetric", 0.8, "outside", (0.3, -0.2)),
        ("hard-tanh", "antisymmetric", 0.8, "inside", (0.3, -0.2)),
        ("tanh", "normal", 0.6, "outside", (0.0, 0.0)),
    ],
)
def test_kernels_of_wide_networks(activation, ensemble, scale, injection, means):
    K, Theta = measured(activation, ensemble, scale, injection, means)
    pair = Pair(
        first=1 + means[0] ** 2,
        second=1 + means[1] ** 2,
        product=0.6 + means[0] * means[1],
        means=means,
    )
    assert nngp(activation, ensemble, scale**2, pair, injection=injection) == pytest.approx(
        K, rel=0.04, abs=0.02
    )
    assert ntk(activation, ensemble, scale**2, pair, injection=injection) == pytest.approx(
        Theta, rel=0.08
    )


def test_derivative_with_respect_to_weights_has_d_on_the_jacobian():
    """Eq. 93 against autograd: D stands at h*, and beside (I - W^T D)^-1, not on z*."""
    phi = as_activation("tanh")
    width = 40
    W = (0.8 * matrix("gaussian", 0, width)).requires_grad_()
    generator = torch.Generator().manual_seed(0)
    x, v = torch.randn(2, width, generator=generator, dtype=torch.float64)
    z = torch.zeros(width, dtype=torch.float64)
    for _ in range(400):
        z = phi(W @ z) + x
    (exact,) = torch.autograd.grad(v @ z, W)
    h, z, M = (W @ z).detach(), z.detach(), W.detach()
    eye = torch.eye(width, dtype=torch.float64)

    def formula(slope, *, printed):
        D = torch.diag(slope)
        if printed:
            return torch.outer(torch.linalg.solve((eye - D @ M).mT, v), D @ z)
        return torch.outer(D @ torch.linalg.solve((eye - D @ M).mT, v), z)

    torch.testing.assert_close(exact, formula(phi.slope(h), printed=False))
    for slope, printed in ((phi.slope(h), True), (phi.slope(z), True), (phi.slope(z), False)):
        assert float((formula(slope, printed=printed) - exact).norm() / exact.norm()) > 0.1


@pytest.mark.parametrize("ensemble", ["gaussian", "orthogonal", "goe", "antisymmetric"])
def test_linear_kernels(ensemble):
    pair = Pair(first=2.0, second=0.7, product=0.5)
    moment = second_moment(ensemble, 0.2)
    assert linear_nngp(ensemble, 0.2, 0.5) == 0.5 * moment
    assert linear_ntk(ensemble, 0.2, 0.5) == 0.5 * moment**2
    assert nngp("identity", ensemble, 0.2, pair) == pytest.approx(0.5 * moment, rel=1e-6)
    assert ntk("identity", ensemble, 0.2, pair) == pytest.approx(0.5 * moment**2, rel=1e-6)


@pytest.mark.parametrize("ensemble", ["gaussian", "goe"])
def test_an_input_with_itself(ensemble):
    same = Pair(product=1.0)
    field = mean_field("hard-tanh", ensemble, 0.2)
    assert nngp("hard-tanh", ensemble, 0.2, same) == pytest.approx(field.output, rel=1e-9)
    trace = field.responses().mean(torch.square)
    expected = trace / (1 - 0.2 * trace) * field.output
    assert ntk("hard-tanh", ensemble, 0.2, same) == pytest.approx(expected, rel=1e-7)
    almost = nngp("hard-tanh", ensemble, 0.2, Pair(product=1 - 1e-6))
    assert almost == pytest.approx(field.output, rel=1e-5)


@pytest.mark.parametrize("ensemble", ["gaussian", "orthogonal", "goe", "antisymmetric", "normal"])
@pytest.mark.parametrize("injection", ["outside", "inside"])
def test_an_input_with_itself_and_its_opposite(ensemble, injection):
    """At any V, where that is not the stable solution too: the network and the input are one."""
    met = 0
    cases = {
        "outside": [("tanh", 0.2, [1.0]), ("erf", 9.0, [1.0])],
        "inside": [("tanh", 9.0, [1.0, -1.0])],
    }
    for activation, V, products in cases[injection]:
        try:
            q = mean_field(activation, ensemble, V, injection=injection).output
        except NoMeanFieldError:
            continue
        for product in products:
            found = nngp(activation, ensemble, V, Pair(product=product), injection=injection)
            assert found == pytest.approx(product * q, rel=1e-5)
        met += 1
    assert met == len(cases[injection]) or ensemble == "goe"
    moved = Pair(first=2.0, second=2.0, product=2.0, means=(1.0, 1.0))
    field = mean_field("tanh", ensemble, 0.5, input_mean=1.0, injection=injection)
    found = nngp("tanh", ensemble, 0.5, moved, injection=injection)
    assert found == pytest.approx(field.output, rel=1e-5)


@pytest.mark.parametrize(
    ("ensemble", "V"), [("gaussian", 1.0), ("goe", 0.25), ("goe", 0.3), ("normal", 0.6)]
)
@pytest.mark.parametrize("kernel", [linear_nngp, linear_ntk])
def test_linear_kernels_end_at_the_critical_scale(kernel, ensemble, V):
    with pytest.raises(ValueError, match="has no kernel at V"):
        kernel(ensemble, V, 0.0)
    assert linear_nngp("orthogonal", 3.0, 1.0) == 0.5
    assert linear_nngp("antisymmetric", 2.0, 1.0) == 0.5


def test_order_of_inputs():
    pair = Pair(first=2.0, second=0.7, product=0.5, means=(0.2, 0.1))
    turned = Pair(first=0.7, second=2.0, product=0.5, means=(0.1, 0.2))
    found = [nngp("tanh", "goe", 0.2, each) for each in (pair, turned)]
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_refusals():
    with pytest.raises(ValueError, match="no two inputs"):
        Pair(product=1.5)
    for given in ({"first": math.nan}, {"product": math.inf}, {"means": (0.0, math.nan)}):
        with pytest.raises(ValueError, match="must be finite"):
            Pair(**given)
    with pytest.raises(ValueError, match="below the square of its mean"):
        Pair(means=(2.0, 0.0))
    with pytest.raises(NoMeanFieldError, match="tangent kernel of tanh is infinite"):
        ntk("tanh", "gaussian", 9.0, Pair(product=1.0))
