"""The two profiles: what they set, what they promise, what they refuse."""

import pytest
import torch
from maps import Module
from problems import normal, relative_residual, with_norm
from references import from_zero, gradients, iterate

import equilibria as eq

W = with_norm(0.9, 10, seed=1)
X = normal(3, 10, seed=2)


def f(z, x):
    return torch.tanh(z @ W.to(z).T + x)


@pytest.mark.parametrize("rtol", [1e-6, 1e-8, 1e-10])
def test_science_is_as_accurate_as_it_says(rtol: float) -> None:
    """Value and gradient against a loop, within the tolerance over sigma_min(I - J)."""
    x = X.clone().requires_grad_()
    sol = eq.fixed_point(f, torch.zeros_like(X), x, throw=True, **eq.profiles.science(rtol=rtol))
    assert (relative_residual(f, sol.value.detach(), X) <= rtol * 1.001).all()
    (got,) = gradients(sol.value, [x])
    at = X.clone().requires_grad_()
    (wanted,) = gradients(iterate(f, torch.zeros_like(X), at, steps=300), [at])
    assert (sol.adjoint.stats.residual <= rtol).all()
    assert (got - wanted).norm() <= 100 * rtol * wanted.norm()


@pytest.mark.parametrize("rtol", [1e-3, 1e-2])
def test_learning_is_cheap_and_follows(rtol: float) -> None:
    x = X.float().requires_grad_()
    profile = eq.profiles.learning(rtol=rtol)
    sol = from_zero(f, x, **profile)
    assert (sol.status == eq.Status.CONVERGED).all()
    gradients(sol.value, [x])
    assert (sol.adjoint.status == eq.Status.CONVERGED).all()
    exact = from_zero(f, x, **eq.profiles.science(rtol=1e-6))
    assert (sol.stats.evals < exact.stats.evals).all()
    tight = eq.profiles.science(rtol=1e-4)["solver"]
    assert tight.max_evals > profile["solver"].max_evals


def test_profiles_fit_a_layer() -> None:
    cell = Module()
    for profile in (eq.profiles.learning(), eq.profiles.science()):
        layer = eq.DEQ(cell, **profile)
        assert (layer(normal(2, 3, seed=3)).status == eq.Status.CONVERGED).all()


def test_float32_ends_at_its_floor_and_says_so() -> None:
    """No refusal, no false success: what rounding keeps out of reach is STALLED."""
    w, x = with_norm(0.9, 300, seed=4).float(), normal(3, 300, seed=5).float()
    profile = eq.profiles.science(rtol=1e-10)
    sol = from_zero(lambda z, x: torch.tanh(z @ w.T + x), x, **profile)
    assert (sol.status == eq.Status.STALLED).all()
    assert ((sol.stats.residual > 1e-10) & (sol.stats.residual < 1e-6)).all()


@pytest.mark.parametrize(
    ("profile", "rtol"),
    [
        ("learning", 1e-6),
        ("learning", 0.5),
        ("science", 1e-2),
        ("science", 0.0),
        ("science", 1e-20),
    ],
)
def test_tolerances_out_of_range(profile: str, rtol: float) -> None:
    other = {"learning": "science", "science": "learning"}[profile]
    with pytest.raises(ValueError, match=rf"profiles\.{profile}.*{other}"):
        getattr(eq.profiles, profile)(rtol=rtol)
