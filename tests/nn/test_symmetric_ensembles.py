"""Symmetric and antisymmetric members: matrices, and convolutions as maps of images."""

import math

import pytest
import torch
from torch import nn

from equilibria.nn.init import antisymmetric_, goe_

SIGN = {goe_: 1, antisymmetric_: -1}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def dense(conv, *shape):
    """The matrix of a convolution on inputs of one shape."""
    x = torch.zeros(shape, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda z: conv(z[None])[0], x)
    return jacobian.reshape(x.numel(), x.numel())


def test_antisymmetric_has_an_imaginary_semicircle():
    weight = antisymmetric_(torch.empty(500, 500, dtype=torch.float64), 0.5, seeded())
    assert torch.equal(weight, -weight.T)
    # i W is Hermitian: torch's eigvalsh is far faster than eigvals.
    eigenvalues = torch.linalg.eigvalsh(1j * weight)
    assert eigenvalues.abs().max().item() == pytest.approx(1, abs=0.03)
    # The semicircle of radius 1: second moment 1/4, fourth moment 1/8.
    assert eigenvalues.square().mean().item() == pytest.approx(1 / 4, rel=0.02)
    assert eigenvalues.pow(4).mean().item() == pytest.approx(1 / 8, rel=0.03)


def test_antisymmetric_has_the_variances_of_the_ensemble():
    weights = torch.stack([antisymmetric_(torch.empty(20, 20), 1.5, seeded(s)) for s in range(500)])
    off = weights.var(0)[~torch.eye(20, dtype=torch.bool)]
    assert off.mean().item() * 20 / 1.5**2 == pytest.approx(1, rel=0.02)
    assert torch.equal(weights.diagonal(dim1=1, dim2=2), torch.zeros(500, 20))


@pytest.mark.parametrize("fill", SIGN, ids=["goe", "antisymmetric"])
@pytest.mark.parametrize(
    ("conv", "shape"),
    [
        (nn.Conv1d(3, 3, 5, padding=2, dtype=torch.float64, bias=False), (3, 7)),
        (nn.Conv2d(3, 3, 3, padding=1, dtype=torch.float64, bias=False), (3, 4, 5)),
        (nn.Conv2d(2, 2, (1, 3), padding=(0, 1), dtype=torch.float64, bias=False), (2, 4, 4)),
        (
            nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular", dtype=torch.float64, bias=False),
            (2, 4, 5),
        ),
        (nn.Conv2d(2, 2, 3, padding=2, dilation=2, dtype=torch.float64, bias=False), (2, 6, 6)),
        (nn.Conv3d(2, 2, 3, padding=1, dtype=torch.float64, bias=False), (2, 3, 3, 3)),
        (nn.ConvTranspose2d(3, 3, 3, padding=1, dtype=torch.float64, bias=False), (3, 4, 4)),
    ],
    ids=["1d", "2d", "wide", "circular", "dilated", "3d", "transposed"],
)
def test_a_convolution_is_such_a_map(fill, conv, shape):
    fill(conv.weight, 1.0, seeded())
    matrix = dense(conv, *shape)
    assert matrix.abs().max() > 0
    torch.testing.assert_close(matrix, SIGN[fill] * matrix.T, rtol=0, atol=1e-15)


@pytest.mark.parametrize("fill", SIGN, ids=["goe", "antisymmetric"])
def test_a_convolution_has_the_semicircle_at_each_frequency(fill):
    weight = fill(torch.empty(150, 150, 3, 3, dtype=torch.float64), 0.5, seeded())
    # V is the variance of a kernel's entries times the fan-in.
    assert weight.var().item() * 150 * 9 == pytest.approx(0.25, rel=0.01)
    place = torch.arange(-1, 2, dtype=torch.float64)
    for angles in ((0.0, 0.0), (1.1, -0.4)):
        phase = torch.exp(1j * (angles[0] * place[:, None] + angles[1] * place))
        symbol = (weight * phase).sum((2, 3))
        hermitian = symbol if fill is goe_ else 1j * symbol
        eigenvalues = torch.linalg.eigvalsh(hermitian)
        assert eigenvalues.abs().max().item() == pytest.approx(1, abs=0.08)
        assert eigenvalues.square().mean().item() == pytest.approx(1 / 4, rel=0.05)


@pytest.mark.parametrize("fill", SIGN, ids=["goe", "antisymmetric"])
@pytest.mark.parametrize(
    ("shape", "words"),
    [((3, 4), r"as many outputs as inputs.*\(3, 4\)"), ((4, 4, 2, 3), "odd size.*gaussian_")],
)
def test_what_cannot_be_such_a_map(fill, shape, words):
    weight = torch.ones(shape)
    with pytest.raises(ValueError, match=words):
        fill(weight)
    assert torch.equal(weight, torch.ones(shape))


def test_an_antisymmetric_network_has_a_fixed_point_at_any_scale():
    weight = antisymmetric_(torch.empty(50, 50, dtype=torch.float64), 10.0, seeded())
    smallest = torch.linalg.svdvals(torch.eye(50, dtype=torch.float64) - weight).min().item()
    assert smallest >= 1 - 1e-12 and math.isfinite(smallest)
