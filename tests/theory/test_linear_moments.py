"""Second moments of linear networks against networks that are drawn."""

import math

import numpy as np
import pytest
import torch
from linear_draws import WIDTH, even_disk, middle, second, tied, untied, weights

from equilibria.theory import (
    critical_V,
    gaussian_limit,
    second_moment,
    second_moment_after,
    second_moment_exponent,
)

ENSEMBLES = ("gaussian", "orthogonal", "goe", "antisymmetric", "normal")
SHARES = (0.3, 0.6)  # of the critical V


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("ensemble", ENSEMBLES[:-1])
def test_second_moment(ensemble, share):
    # One draw of 240 units is off by up to 4 % (Gaussian, at .6 V_c), their median by a third.
    V = share * critical_V(ensemble)
    measured = middle([second(m) for m in tied(ensemble, V)])
    assert measured == pytest.approx(second_moment(ensemble, V), rel=0.03)


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_second_moment_untied(ensemble):
    measured = middle([second(m) for m in untied(ensemble, 0.5)])
    assert measured == pytest.approx(second_moment(ensemble, 0.5, tied=False), rel=0.02)


@pytest.mark.parametrize("ensemble", ["orthogonal", "antisymmetric"])
def test_what_holds_beyond_the_critical_V(ensemble):
    measured = middle([second(m) for m in tied(ensemble, 2.0)])
    assert measured == pytest.approx(second_moment(ensemble, 2.0), rel=0.03)


def test_printed_goe_variance_is_negative():
    V = 0.15
    s = math.sqrt(1 - 4 * V)
    printed = 1 / s - (1 - s) / (2 * V) - 1
    right = 2 / s - (1 - s) / (2 * V) - 1
    assert printed < 0
    assert second_moment("goe", V) - 1 == pytest.approx(right, rel=1e-12)
    assert middle([second(m) for m in tied("goe", V)]) - 1 == pytest.approx(right, rel=0.05)


def test_goe_is_the_sum_of_catalan_numbers():
    V = 0.1
    series = sum((2 * i + 1) * V**i * math.comb(2 * i, i) / (i + 1) for i in range(80))
    assert second_moment("goe", V) == pytest.approx(series, rel=1e-12)


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_limits(ensemble):
    critical = critical_V(ensemble)
    assert second_moment(ensemble, 0.0) == 1
    assert second_moment(ensemble, 1e-9) == pytest.approx(1, abs=1e-8)
    assert second_moment(ensemble, 1.0, tied=False) == math.inf
    assert math.isinf(second_moment(ensemble, critical)) == (ensemble != "antisymmetric")
    assert critical_V(ensemble, tied=False) == 1


@pytest.mark.parametrize("ensemble", [name for name in ENSEMBLES if name != "normal"])
@pytest.mark.parametrize("one", [True, False], ids=["tied", "untied"])
def test_second_moment_exponents_are_the_formulas_slopes(ensemble, one):
    critical = critical_V(ensemble, tied=one)
    near, nearer = (
        second_moment(ensemble, critical * (1 - delta), tied=one) for delta in (1e-7, 1e-8)
    )
    slope = math.log10(near / nearer)
    assert slope == pytest.approx(second_moment_exponent(ensemble, tied=one), abs=1e-3)


def test_given_spectra():
    # The disk, by its eigenvalues; and what is one number for all: 1 + i and its conjugate.
    fine = even_disk(20_000).numpy()
    assert second_moment("normal", 0.3, spectrum=fine) == pytest.approx(
        second_moment("normal", 0.3), rel=1e-3
    )
    assert critical_V("normal", spectrum=fine) == pytest.approx(critical_V("normal"), rel=1e-3)
    pair = [3 + 3j, 3 - 3j]
    assert second_moment("normal", 0.5, spectrum=pair) == pytest.approx(1 / abs(0.5 - 0.5j) ** 2)
    assert second_moment("normal", 1.0, spectrum=[1.0]) == math.inf
    near = [1j + 1e-16, 2j, -1j, -2j - 1e-16]  # conjugates but for rounding
    assert critical_V("normal", spectrum=near) == pytest.approx(2.5 / 4)
    assert critical_V("normal", spectrum=[2.0, -2.0, 1j, -1j]) == pytest.approx(2.5 / 4)


def test_given_spectrum_untied():
    # tr W = .5: one step adds 2 tr W tr M, which ensembles of trace zero do not.
    width, spectrum = 200, torch.tensor([0.9, 0.1] * 100, dtype=torch.complex128)
    V = float(spectrum.abs().square().mean())
    expected = second_moment("normal", V, tied=False, spectrum=spectrum)
    assert expected == pytest.approx(1.5 / (0.5 * (1 - V)), rel=1e-12)
    z = torch.ones(width, dtype=torch.float64)
    x, means = z, []
    generator = torch.Generator().manual_seed(0)
    for step in range(200):
        q, _ = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=z.dtype))
        z = q @ (spectrum.real * (q.mT @ z)) + x
        means.append(float(z @ z / width)) if step >= 20 else None
    assert float(np.mean(means)) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("one", [True, False], ids=["tied", "untied"])
def test_moment_after_some_steps(one):
    """Eq. 48 counts t terms from z_0 = 0; eq. 7 as printed has V^t for each of them."""
    V, steps = 0.6, 4
    right = second_moment_after(steps, V)
    drawn = weights("gaussian", V)
    found = []
    for _ in range(8):
        w = next(drawn)
        m = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
        for _ in range(steps):
            m = torch.eye(WIDTH, dtype=torch.float64) + w @ m
            w = w if one else next(drawn)
        found.append(second(m))
    assert right == pytest.approx(1 + V + V**2 + V**3, rel=1e-12)
    assert middle(found) == pytest.approx(right, rel=0.02)
    assert abs(1 + steps * V**steps - right) > 0.3 * right  # eq. 7
    assert V**steps / (1 - V) - 1 < 0  # eq. 51, a variance


def test_steps_end_in_the_fixed_point():
    assert second_moment_after(0, 0.5) == 0
    assert second_moment_after(1, 2.0) == 1
    assert second_moment_after(3, 1.0) == 3
    assert second_moment_after(5000, 2.0) == math.inf
    assert second_moment_after(200, 0.5) == pytest.approx(second_moment("gaussian", 0.5))


def test_units_are_gaussian():
    """Theorem A.2: over draws each unit has mean x_i and the same variance, whatever its x_i."""
    V, draws, width = 0.5, 400, 100
    x = torch.linspace(-2, 2, width, dtype=torch.float64)
    drawn, identity = weights("gaussian", V, width), torch.eye(width, dtype=torch.float64)
    z = torch.stack([torch.linalg.solve(identity - next(drawn), x) for _ in range(draws)])
    mean, variance = gaussian_limit(x, V)
    assert variance == pytest.approx(V / (1 - V) * float(x @ x) / width, rel=1e-12)
    standard = (z - torch.from_numpy(mean)) / math.sqrt(variance)
    # 40,000 numbers, of which those of a draw share their length: its spread is .15.
    assert float(standard.mean()) == pytest.approx(0, abs=0.03)
    outer, inner = standard[:, [0, 1, -2, -1]], standard[:, 48:52]
    assert float(outer.square().median().sqrt()) == pytest.approx(0.674, abs=0.05)
    assert float(inner.square().median().sqrt()) == pytest.approx(0.674, abs=0.05)
    within = (standard.abs() < 1).double().mean()
    assert float(within) == pytest.approx(0.683, abs=0.03)
    # As printed, eq. 47 leaves the unit of largest x_i no variance: its second moment is less than
    # the square of its mean.
    assert float(x @ x) / width / (1 - V) < float(x[-1]) ** 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: second_moment("gausian", 0.5), "ensemble"),
        (lambda: second_moment("gaussian", -0.1), "V"),
        (lambda: second_moment("goe", math.nan), "V"),
        (lambda: second_moment("goe", 0.1, spectrum=[1.0]), "spectrum of their own"),
        (lambda: second_moment("normal", 0.1, spectrum=[]), "one or more"),
        (lambda: second_moment("normal", 0.1, spectrum=[0.0]), "not all zero"),
        (lambda: second_moment_after(-1, 0.5), "steps"),
        (lambda: second_moment_after(1.5, 0.5), "whole number"),
        (lambda: second_moment("normal", 0.1, spectrum=[1j]), "some without"),
        (lambda: second_moment("normal", 0.1, spectrum=[1, 1j]), "some without"),
        (lambda: critical_V("normal", spectrum=[1 + 1j, 1 - 2j]), "some without"),
        (lambda: second_moment("normal", 0.1, tied=False, spectrum=[1j, 1j, -1j]), "some without"),
        (lambda: gaussian_limit([1.0], 1.0), "no such limit"),
        (lambda: gaussian_limit([[1.0]], 0.5), "one vector"),
        (lambda: critical_V("random"), "ensemble"),
        (lambda: second_moment_exponent("random"), "ensemble"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_impossible_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()
