"""Length variance of linear networks against networks that are drawn."""

import math

import numpy as np
import pytest
import torch
from linear_draws import WIDTH, even_disk, length, middle, second, tied, untied, weights

from equilibria.nn.init import fill
from equilibria.theory import critical_V, length_variance, length_variance_exponent, second_moment
from equilibria.theory.linear import fourth_moment_untied
from equilibria.theory.traces import traces

ENSEMBLES = ("gaussian", "orthogonal", "goe", "antisymmetric", "normal")


@pytest.mark.parametrize("share", [0.3, 0.6])
@pytest.mark.parametrize("ensemble", ENSEMBLES[:-1])
def test_length_variance(ensemble, share):
    # One draw of 240 units is off by up to 20 % (Gaussian, at .6 V_c), their median by a third.
    V = share * critical_V(ensemble)
    measured = middle([length(m) for m in tied(ensemble, V)])
    assert measured == pytest.approx(length_variance(ensemble, V), rel=0.08)


def test_normal_length_variance_is_its_spectrums():
    V, spectrum = 0.3, even_disk(WIDTH)
    (m,) = tied("normal", V, 1)
    assert length(m) == pytest.approx(length_variance("normal", V, spectrum=spectrum), rel=1e-9)
    assert second(m) == pytest.approx(second_moment("normal", V, spectrum=spectrum), rel=1e-9)


@pytest.mark.parametrize(
    ("ensemble", "V"), [*((name, 0.5) for name in ENSEMBLES), ("gaussian", 0.7), ("goe", 0.7)]
)
def test_untied_length_variance(ensemble, V):
    """Eq. 15 holds; eq. 14 is too low by more than the draws differ."""
    measured = middle([length(m) for m in untied(ensemble, V)])
    b = 1 / (1 - V)
    assert measured == pytest.approx(length_variance(ensemble, V, tied=False), rel=0.06)
    if ensemble == "orthogonal":
        printed = 2 * (2 * b**2 - 1 / (1 - V**2))
        assert length_variance(ensemble, V, tied=False) == pytest.approx(printed, rel=1e-12)
    elif ensemble in ("gaussian", "goe"):
        printed = 2 * (2 * b**2 + 1 / (1 - V**2) ** 2 - 2 / (1 - V**2))
        assert printed < 0.92 * measured


@pytest.mark.parametrize("ensemble", ["orthogonal", "antisymmetric"])
def test_what_holds_beyond_the_critical_V(ensemble):
    measured = middle([length(m) for m in tied(ensemble, 2.0)])
    assert measured == pytest.approx(length_variance(ensemble, 2.0), rel=0.08)


def test_definition_of_length_variance():
    """Lemma 2.2: N^-2 Var_x[z . z] = 2 tr (M^T M)^2 / N. Eq. 12 has N^-1; eq. 68 has no 2."""
    (m,) = tied("gaussian", 0.5, 1)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(len(m), 10_000, generator=generator, dtype=m.dtype)
    lengths = (m @ x).square().sum(0) / len(m)
    assert len(m) * float(lengths.var()) == pytest.approx(length(m), rel=0.05)


@pytest.mark.parametrize("ensemble", ENSEMBLES)
@pytest.mark.parametrize("one", [True, False], ids=["tied", "untied"])
def test_exponents_are_the_formulas_slopes(ensemble, one):
    critical = critical_V(ensemble, tied=one)
    near, nearer = (
        length_variance(ensemble, critical * (1 - delta), tied=one) for delta in (1e-5, 1e-6)
    )
    assert math.log10(near / nearer) == pytest.approx(
        length_variance_exponent(ensemble, tied=one), abs=1e-3
    )


def test_published_exponents():
    assert [length_variance_exponent(name) for name in ("goe", "orthogonal", "gaussian")] == [
        -2.5,
        -3,
        -4,
    ]
    assert length_variance_exponent("orthogonal", tied=False) == -2


def test_length_variance_is_the_published_formula():
    V, b = 0.37, 1 / 0.63
    gaussian = 2 * V**2 * b**4 + 4 * V * b**3 + 2 * b**2  # eq. 19
    orthogonal = 2 * (2 * b**3 - b**2)  # eq. 18
    assert length_variance("gaussian", V) == pytest.approx(gaussian, rel=1e-12)
    assert length_variance("orthogonal", V) == pytest.approx(orthogonal, rel=1e-12)


def test_printed_goe_length_variance_vanishes():
    V = 0.249
    s = 1 - 4 * V
    printed = (s**2.5 - s**1.5) / (2 * V)
    from_trace = 2 * (s**-2.5 - s**-1.5) / (4 * V)  # eq. 148
    assert abs(printed) < 1e-3
    assert length_variance("goe", V) == pytest.approx(from_trace, rel=1e-9)


def test_goe_integral_is_the_trace():
    """Eq. 81 is tr (I - W)^-4, half of N sigma^2, and goes like 1/32 delta^-2.5, not 1/8."""
    nodes, weight = np.polynomial.chebyshev.chebgauss(4000)  # weight 1 / sqrt(1 - x^2)
    delta = 1e-3
    root = 0.5 - delta
    integral = 2 / math.pi * float(np.sum(weight * (1 - nodes**2) / (1 - 2 * root * nodes) ** 4))
    assert length_variance("goe", root**2) == pytest.approx(2 * integral, rel=1e-6)
    assert integral == pytest.approx(delta**-2.5 / 32, rel=0.01)


@pytest.mark.parametrize("ensemble", ENSEMBLES)
def test_limits(ensemble):
    critical = critical_V(ensemble)
    assert length_variance(ensemble, 0.0) == 2
    assert length_variance(ensemble, 0.0, tied=False) == 2
    assert length_variance(ensemble, 1.0, tied=False) == math.inf
    assert math.isinf(length_variance(ensemble, critical)) == (ensemble != "antisymmetric")


def test_given_spectra():
    fine = even_disk(20_000).numpy()
    for one in (True, False):
        assert length_variance("normal", 0.3, tied=one, spectrum=fine) == pytest.approx(
            length_variance("normal", 0.3, tied=one), rel=2e-3
        )
    # The semicircle by its quantiles is the GOE, on the axis of imaginary numbers the other one.
    angle = math.pi * (np.arange(20_000) + 0.5) / 20_000
    half = np.interp(
        (np.arange(4000) + 0.5) / 4000, (angle - np.sin(2 * angle) / 2) / math.pi, angle
    )
    circle = np.cos(half)
    for spectrum, ensemble in ((circle, "goe"), (1j * circle, "antisymmetric")):
        for one in (True, False):
            expected = length_variance(ensemble, 0.15, tied=one)
            found = length_variance("normal", 0.15, tied=one, spectrum=spectrum)
            assert found == pytest.approx(expected, rel=2e-3)


def test_untied_with_a_spectrum_of_any_mean():
    """The general recursion: tr W, tr W^2, and tr W^T W W less tr W V, are not zero."""
    width, generator = 160, torch.Generator().manual_seed(0)
    large = torch.linspace(0.75, 0.85, width // 4, dtype=torch.complex128)
    angle = math.pi * torch.rand(width // 4, generator=generator, dtype=torch.float64)
    half = torch.cat([large, torch.polar(torch.full_like(angle, 0.1), angle)])
    values = torch.cat([half, half.conj()])
    V = float(values.abs().square().mean())
    options = {"spectrum": values / math.sqrt(V)}
    expected = length_variance("normal", V, tied=False, **options)
    assert traces("normal", V, **options).first > 0.2
    assert expected == 2 * fourth_moment_untied(traces("normal", V, **options))
    identity = torch.eye(width, dtype=torch.float64)
    m, found, seconds = identity, [], []
    for step in range(80):
        w = torch.empty_like(identity)
        fill(w, "normal", math.sqrt(V), generator=generator, **options)
        m = identity + w @ m
        if step >= 20 and step % 5 == 0:
            found.append(length(m))
            seconds.append(second(m))
    # The spread of a state is 1 % here, and .1 % of its second moment.
    assert middle(found) == pytest.approx(expected, rel=0.015)
    plain = second_moment("normal", V, tied=False, **options)
    assert middle(seconds) == pytest.approx(plain, rel=0.004)


def test_edge_of_goe_fluctuates_like_tracy_widom():
    """By N^(-2/3): a quarter where N is eight times as much, and not a 23rd as N^(-3/2) would."""
    spreads = []
    for width, draws in ((20, 400), (160, 120)):
        drawn = weights("goe", 0.25, width)
        edges = torch.stack([torch.linalg.eigvalsh(next(drawn))[-1] for _ in range(draws)])
        spreads.append(float(edges.std()))
    # The spread of a spread over 120 draws is 6 %.
    assert spreads[0] / spreads[1] == pytest.approx(4, rel=0.2)


@pytest.mark.parametrize("power", [1, 3])
def test_largest_singular_value_of_powers(power):
    V, width = 0.8, 500
    w = next(weights("gaussian", V, width))
    largest = float(torch.linalg.matrix_norm(torch.linalg.matrix_power(w, power), 2)) ** 2
    limit = V**power * (power + 1) ** (power + 1) / power**power
    assert largest == pytest.approx(limit, rel=0.06)
    assert largest > 2.5 * power * V**power  # eq. 38


def test_impossible_arguments():
    with pytest.raises(ValueError, match="spectrum of their own"):
        length_variance("gaussian", 0.1, spectrum=[1.0])
    with pytest.raises(ValueError, match="ensemble"):
        length_variance_exponent("random")
    with pytest.raises(ValueError, match="V"):
        length_variance("gaussian", math.inf)
