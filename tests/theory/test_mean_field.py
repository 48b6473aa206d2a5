"""Mean fields against fixed points of networks of 500 units, and their limits."""

import math

import pytest
import torch
from nonlinear_draws import samples

from equilibria.theory import (
    Activation,
    NoMeanFieldError,
    critical_scale,
    mean_field,
    second_moment,
)

# Each is below the threshold of its ensemble.
STABLE = [
    ("gaussian", "outside", 1.2, "hard-tanh"),
    ("gaussian", "inside", 1.0, "tanh"),
    ("orthogonal", "outside", 1.2, "tanh"),
    ("orthogonal", "inside", 1.0, "hard-tanh"),
    ("goe", "outside", 0.6, "hard-tanh"),
    ("goe", "inside", 0.7, "tanh"),
    ("antisymmetric", "outside", 1.5, "tanh"),
    ("antisymmetric", "inside", 1.5, "hard-tanh"),
    ("normal", "outside", 0.9, "tanh"),
    ("normal", "inside", 0.9, "hard-tanh"),
]


@pytest.mark.parametrize(("ensemble", "injection", "scale", "activation"), STABLE)
def test_theorem_3_1_and_the_reaction(ensemble, injection, scale, activation):
    mean = 0.0 if injection == "outside" else 0.4
    h, z = samples(activation, ensemble, scale, injection, mean)
    found = mean_field(activation, ensemble, scale**2, injection=injection, input_mean=mean)
    assert found.gain < 1
    assert found.square == pytest.approx(float(h.square().mean()), rel=0.05)
    assert found.output == pytest.approx(float(z.square().mean()), rel=0.025)
    slopes = found.activation.slope(h).mean()
    assert found.slopes().mean(lambda d: d) == pytest.approx(float(slopes), abs=0.015)
    share = float((h.abs() < 0.5).double().mean())
    # The indicator jumps inside pieces of the rule: two digits.
    assert found.law.mean(lambda h: (h.abs() < 0.5).double()) == pytest.approx(share, abs=0.02)


def test_inputs_of_a_mean_enter_outside():
    for ensemble, scale in (("gaussian", 1.0), ("goe", 0.6), ("antisymmetric", 1.0)):
        h, z = samples("tanh", ensemble, scale, "outside", 0.5)
        found = mean_field("tanh", ensemble, scale**2, input_mean=0.5)
        assert found.output == pytest.approx(float(z.square().mean()), rel=0.025)
        assert found.mean == pytest.approx(float(h.mean()), abs=0.05)


def test_theorem_3_1_fails_for_symmetric_weights():
    h, _ = samples("hard-tanh", "goe", 0.6, "outside", 0.0)
    paper = mean_field("hard-tanh", "goe", 0.36, reaction=False).square
    assert float(h.square().mean()) > 1.8 * paper
    assert paper == mean_field("hard-tanh", "gaussian", 0.36).square


@pytest.mark.parametrize("ensemble", ["gaussian", "orthogonal", "goe", "antisymmetric", "normal"])
@pytest.mark.parametrize("injection", ["outside", "inside"])
@pytest.mark.parametrize("V", [0.05, 0.24])
def test_linear_networks(ensemble, injection, V):
    found = mean_field("identity", ensemble, V, injection=injection)
    disk = -math.log1p(-2 * V) / (2 * V)  # mean of 1 / |1 - lambda|^2
    expected = disk if ensemble == "normal" else second_moment(ensemble, V)
    assert found.output == pytest.approx(expected, rel=1e-8)
    root = {"goe": 1 - 4 * V, "antisymmetric": 1 + 4 * V}.get(ensemble)
    if root is not None:
        assert found.response == pytest.approx(abs(1 - math.sqrt(root)) / (2 * V), rel=1e-9)
    assert found.gain == pytest.approx(1 - found.response**2 / expected, rel=1e-6)


def test_relu_has_no_finite_variance_from_two_on():
    found = mean_field("relu", "gaussian", 1.9)
    assert found.square == pytest.approx(1.9 / (1 - 0.95), rel=1e-9)
    with pytest.raises(NoMeanFieldError, match="infinite for relu at V = 2"):
        mean_field("relu", "gaussian", 2.0)


def test_symmetric_weights_lose_their_mean_field():
    with pytest.raises(NoMeanFieldError, match="hold it in place"):
        mean_field("tanh", "goe", 9.0, injection="inside")


def test_no_input_is_no_output_until_it_is():
    assert mean_field("tanh", "gaussian", 0.8, input_variance=0.0, injection="inside").square == 0
    lively = mean_field("tanh", "gaussian", 1.5, input_variance=0.0, injection="inside")
    assert lively.square > 0.1
    assert lively.square == pytest.approx(1.5 * lively.output, rel=1e-9)
    assert mean_field("tanh", "goe", 0.0).output == 1


def test_scaling_inputs_and_a_linear_network_alike():
    one = mean_field("identity", "goe", 0.2)
    nine = mean_field("identity", "goe", 0.2, input_variance=9.0)
    assert nine.square == pytest.approx(9 * one.square, rel=1e-8)


def test_inputs_of_any_size():
    for ensemble in ("gaussian", "goe", "antisymmetric"):
        one = mean_field("identity", ensemble, 0.2).output
        for variance in (1e-12, 1e12, 1e20):
            found = mean_field("identity", ensemble, 0.2, input_variance=variance)
            assert found.output == pytest.approx(variance * one, rel=1e-8)
    assert mean_field("identity", "gaussian", 0.9, input_variance=1e12).square == pytest.approx(
        9e12
    )
    for variance in (1e-20, 1e-4):  # what the network makes by itself is of size 1
        found = mean_field("tanh", "gaussian", 4.0, input_variance=variance, injection="inside")
        assert found.output == pytest.approx(0.53037, rel=1e-3)


def leaky(slope):
    return Activation(
        "leaky",
        lambda h: torch.where(h > 0, h, slope * h),
        lambda h: (h > 0) + slope * (h <= 0),
        (0,),
    )


def test_leaky_relu_with_symmetric_weights():
    """V* is where c = V chi(c) and V E (dz/dxi)^2 = 1 together, both known for two slopes."""
    slope, a, b = 0.5, 1.0, 2.0  # the latter two are 1 / phi'
    low, high, double = 0.0, 1.0, 0.0
    for _ in range(60):
        c = (low + high) / 2
        single, double = (0.5 * ((a - c) ** -p + (b - c) ** -p) for p in (1, 2))
        low, high = (c, high) if single > c * double else (low, c)
    exact = double**-0.5
    assert exact == pytest.approx(0.6146585, rel=1e-6)
    near = mean_field(leaky(slope), "goe", 0.999 * exact**2)
    assert near.coupling == pytest.approx(0.999 * exact**2 * near.response, rel=1e-7)
    assert 0.9 < near.gain < 1
    for V in (1.0002 * exact**2, 2.5):
        with pytest.raises(NoMeanFieldError, match="infinite"):
            mean_field(leaky(slope), "goe", V)
    found = critical_scale(leaky(slope), "goe", tolerance=0.02)
    assert found == pytest.approx(exact, rel=0.02)


def test_antisymmetric_weights_keep_the_variance_finite():
    for V in (1.0, 2.0, 30.0):
        found = mean_field("identity", "antisymmetric", V)
        assert found.output == pytest.approx(second_moment("antisymmetric", V), rel=1e-8)


def test_a_falling_activation_is_the_rising_one_with_the_weights_turned():
    for ensemble, V in (("goe", 0.2), ("antisymmetric", 4.0)):
        rising = mean_field("tanh", ensemble, V)
        falling = mean_field(lambda h: -torch.tanh(h), ensemble, V)
        assert falling.output == pytest.approx(rising.output, rel=1e-9)
        assert falling.response == pytest.approx(-rising.response, rel=1e-9)


def test_antisymmetric_weights_never_lose_theirs():
    gains = [mean_field("hard-tanh", "antisymmetric", V).gain for V in (1.0, 30.0, 1000.0)]
    assert gains == sorted(gains)
    assert gains[-1] < 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ensemble": "gauss"}, "there is no ensemble 'gauss'"),
        ({"V": -1.0}, "must be >= 0"),
        ({"injection": "beside"}, "'outside' or 'inside'"),
        ({"input_variance": -1.0}, "must be finite and >= 0"),
    ],
)
def test_refusals(options, words):
    given = {"activation": "tanh", "ensemble": "gaussian", "V": 1.0} | options
    with pytest.raises(ValueError, match=words):
        mean_field(**given)


@pytest.mark.parametrize(
    ("activation", "ensemble", "injection", "scale"),
    [
        ("identity", "gaussian", "outside", 1.0),
        ("identity", "goe", "outside", 0.5),
        ("identity", "normal", "inside", math.sqrt(0.5)),
        ("identity", "antisymmetric", "outside", 0.5),
        ("relu", "gaussian", "outside", math.sqrt(2)),
        ("relu", "goe", "inside", math.sqrt(0.5)),
        ("hard-tanh", "gaussian", "outside", 1.7216),
        ("hard-tanh", "gaussian", "inside", 1.4397),
        ("tanh", "orthogonal", "outside", 2.5373),
    ],
)
def test_critical_scales(activation, ensemble, injection, scale):
    found = critical_scale(activation, ensemble, injection=injection, tolerance=1e-3)
    assert found == pytest.approx(scale, rel=1e-3)


def test_critical_scale_of_symmetric_weights_is_twice_the_papers():
    ours = critical_scale("hard-tanh", "goe", tolerance=5e-3)
    paper = critical_scale("hard-tanh", "goe", reaction=False, tolerance=5e-3)
    assert ours / paper == pytest.approx(1.95, abs=0.1)
    gain = mean_field("hard-tanh", "goe", ours**2).gain
    assert gain == pytest.approx(1, abs=0.01)


def test_what_never_becomes_unstable():
    flat = critical_scale(lambda h: 0 * h, "gaussian")
    assert math.isinf(flat)
    assert math.isinf(critical_scale("tanh", "gaussian", limit=1.5))


def test_a_critical_scale_is_no_end_of_the_search():
    for steep in (1e-4, 1e5):
        found = critical_scale(lambda h, a=steep: a * h, "gaussian", limit=1e5, tolerance=1e-4)
        assert found == pytest.approx(1 / steep, rel=1e-3)
    assert critical_scale("identity", "gaussian", tolerance=0.0) == pytest.approx(1, rel=1e-9)
    for options in ({"limit": -1.0}, {"limit": math.inf}, {"tolerance": -1.0}, {"tolerance": 2.0}):
        with pytest.raises(ValueError, match="must be"):
            critical_scale("tanh", "gaussian", **options)
    with pytest.raises(ValueError, match="is not finite everywhere"):
        critical_scale(lambda h: h.exp().exp(), "gaussian")


def test_laws_are_laws():
    for ensemble in ("gaussian", "goe", "antisymmetric"):
        found = mean_field("hard-tanh", ensemble, 0.5)
        assert float(found.law.weights.sum()) == pytest.approx(1, abs=1e-10)
        assert found.noise == pytest.approx(0.5 * found.output)
