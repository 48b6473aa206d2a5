"""Broyden's method: with limited memory it never ends worse than with all of it."""

import pytest
import torch
from problems import NEWTON, UNKNOWN, normal, tanh_net, with_norm, with_spectrum
from references import from_zero

import equilibria as eq

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status


def solve(problem, solver):
    with torch.no_grad():
        weights = map(eq.shared, problem.weights)
        return eq.fixed_point(problem.f, problem.z0, *problem.operands, *weights, solver=solver)


@pytest.mark.parametrize("norm", [3.0, 6.0])
def test_limited_memory_is_safe(norm: float) -> None:
    """Discarding the oldest update in place diverged in 8 of 10 such nets (||W||_2 = 6)."""
    converged = 0
    for seed in range(3):
        w = with_norm(norm, 50, seed=100 + seed)
        problem = tanh_net("random", w, UNKNOWN, batch=10, seed=seed)
        full = solve(problem, eq.Broyden(rtol=1e-6, max_evals=300)).status == CONVERGED
        converged += int(full.sum())
        for memory in (3, 10, 30):
            limited = solve(problem, eq.Broyden(rtol=1e-6, max_evals=200, memory=memory))
            assert not (limited.status[full] >= DIVERGED).any()
            assert limited.value.isfinite().all()
            # Where it fails, it still returns the best iterate, no worse than the start.
            assert (limited.stats.residual <= 1).all()
    assert converged >= 10


@pytest.mark.parametrize("norm", [0.9, 1.5])
def test_limited_equals_full_where_memory_is_not_exceeded(norm: float) -> None:
    problem = tanh_net("random", with_norm(norm, 50, seed=7), NEWTON)
    full = solve(problem, eq.Broyden(rtol=1e-6))
    assert (full.status == CONVERGED).all()
    enough = solve(problem, eq.Broyden(rtol=1e-6, memory=int(full.stats.evals.max())))
    assert torch.equal(full.value, enough.value)
    assert torch.equal(full.stats.evals, enough.stats.evals)


@pytest.mark.parametrize("d", [1, 2, 5, 8])
def test_linear_problems_end_in_twice_their_dimension(d: int) -> None:
    """Broyden's method ends after at most 2 d steps on a linear problem of dimension d (Gay 1979).

    The spectrum reaches 2, where plain iteration diverges.
    """
    values = torch.linspace(-2, 0.5, d, dtype=torch.float64)
    a, x = with_spectrum(values, seed=d), normal(4, d, seed=d + 1)
    sol = from_zero(lambda z, x: z @ a.T + x, x, solver=eq.Broyden(rtol=1e-9))
    assert (sol.status == CONVERGED).all()
    assert (sol.stats.evals <= 2 * d + 2).all()
