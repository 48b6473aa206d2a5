"""What each forward solver promises beyond the answer: its counts, and what its options do."""

import functools
from itertools import pairwise

import pytest
import torch
from problems import BY_NAME, NEWTON, UNKNOWN, normal, spread, tanh_net, with_norm, with_spectrum
from references import from_zero, iterate

import equilibria as eq

CONVERGED = eq.Status.CONVERGED
SOLVERS = [eq.Picard(), eq.Anderson(), eq.Anderson(period=3), eq.Broyden()]


def linear(values: torch.Tensor, batch: int = 3):
    """z = A z + x with a symmetric A of these eigenvalues, and its operand."""
    a, x = with_spectrum(values, seed=5), normal(batch, len(values), seed=6)
    return (lambda z, x: z @ a.T + x), torch.zeros_like(x), x


@pytest.mark.parametrize("solver", SOLVERS)
def test_identity_ends_at_the_first_evaluation(solver) -> None:
    z0 = normal(3, 4, seed=1)
    sol = eq.fixed_point(lambda z: z.clone(), z0, solver=solver)
    assert torch.equal(sol.value, z0)
    assert sol.stats.evals.tolist() == [1, 1, 1] and sol.stats.residual.tolist() == [0, 0, 0]


@pytest.mark.parametrize("solver", SOLVERS)
def test_constant_ends_at_the_second_evaluation(solver) -> None:
    x = normal(3, 4, seed=1)
    sol = from_zero(lambda z, x: x + 0 * z, x, solver=solver)
    assert torch.equal(sol.value, x)
    assert sol.stats.evals.tolist() == [2, 2, 2]


@pytest.mark.parametrize("solver", SOLVERS)
def test_one_evaluation_returns_the_start(solver) -> None:
    """The value is an iterate that was evaluated: after one evaluation only z0 is one."""
    f, z0, x = linear(spread(-0.9, 0.9, 10))
    z0 = normal(*z0.shape, seed=3)
    solver = type(solver)(max_evals=1)
    sol = eq.fixed_point(f, z0, x, solver=solver)
    assert torch.equal(sol.value, z0)
    assert (sol.status == eq.Status.MAX_EVALS).all()
    fz = f(z0, x)
    torch.testing.assert_close(sol.stats.residual, (fz - z0).norm(dim=1) / fz.norm(dim=1))


@pytest.mark.parametrize("damping", [1.0, 0.5, 1.5])
def test_picard_is_the_damped_iteration(damping: float) -> None:
    """After n evaluations Picard stands at n - 1 steps. papers: Bai 2022 (thesis), eq. 5.9."""
    f, z0, x = linear(spread(0.0, 0.3, 10))
    sol = eq.fixed_point(f, z0, x, solver=eq.Picard(damping=damping, max_evals=6, rtol=0.0))
    wanted = iterate(f, z0, x, steps=5, damping=damping)
    torch.testing.assert_close(sol.value, wanted, rtol=1e-14, atol=1e-14)
    # The residual is of z itself, not of the damped step.
    gap = (f(wanted, x) - wanted).norm(dim=1) / f(wanted, x).norm(dim=1)
    torch.testing.assert_close(sol.stats.residual, gap, rtol=1e-9, atol=0)


def test_picard_counts_follow_the_contraction() -> None:
    """z = r z + x from 0: the relative residual after k steps is r^k (1 - r) / (1 - r^(k+1))."""
    r, rtol = 0.8, 1e-5
    x = normal(1, 7, seed=1)
    sol = from_zero(lambda z, x: r * z + x, x, solver=eq.Picard(rtol=rtol))
    steps = next(k for k in range(100) if r**k * (1 - r) / (1 - r ** (k + 1)) <= rtol)
    assert sol.stats.evals.tolist() == [steps + 1]


@pytest.mark.parametrize("radius", [0.9, 0.99])
def test_acceleration_accelerates(radius: float) -> None:
    """They need a fraction of Picard's evaluations on a symmetric spectrum."""
    f, z0, x = linear(spread(-radius, radius, 100))
    options = {"rtol": 1e-5, "max_evals": 1000}
    picard, *others = (
        eq.fixed_point(f, z0, x, solver=type(solver)(**options)).stats.evals for solver in SOLVERS
    )
    for evals in others:
        assert (evals.double() < 0.7 * picard).all()


def test_anderson_beats_picard_on_an_easy_problem() -> None:
    """A ridge that is not relative makes it slower than plain iteration (see torchdeq 0.1)."""
    problem = BY_NAME["tanh/norm_.9"]
    for rtol in (1e-3, 1e-6, 1e-10):
        counts = [
            problem.solve(solver=solver(rtol=rtol)).stats.evals
            for solver in (eq.Picard, eq.Anderson, eq.Auto)
        ]
        assert (counts[1] <= counts[0]).all() and (counts[2] <= counts[0]).all()


def test_options_of_anderson_change_the_path_and_not_the_answer() -> None:
    f, z0, x = linear(spread(-0.9, 0.9, 20))
    limits = {"rtol": 1e-10, "max_evals": 500}
    plain = eq.fixed_point(f, z0, x, solver=eq.Anderson(**limits), trace=True)
    for options in ({"damping": 0.5}, {"period": 3}, {"history": 2}, {"ridge": 1e-2}):
        sol = eq.fixed_point(f, z0, x, solver=eq.Anderson(**limits, **options), trace=True)
        assert (sol.status == CONVERGED).all()
        torch.testing.assert_close(sol.value, plain.value, rtol=1e-7, atol=1e-7)
        assert not torch.equal(sol.stats.trace[:20], plain.stats.trace[:20])


def test_anderson_extrapolates_at_every_period() -> None:
    """Between extrapolations an iterate is f of the one before; the first one has no history."""
    f, z0, x = linear(spread(-0.9, 0.9, 20), batch=1)
    plain = {}
    for period in (1, 3):
        states = eq.fixed_point(
            f, z0, x, states=range(12), solver=eq.Anderson(period=period)
        ).states
        plain[period] = [
            k for k, (z, after) in enumerate(pairwise(states), 1) if torch.equal(after, f(z, x))
        ]
    assert plain == {1: [1], 3: [1, 2, 3, 4, 5, 7, 8, 10, 11]}


def test_the_default_chooses() -> None:
    f, z0, x = linear(spread(-0.9, 0.9, 20))
    default, named = (
        eq.fixed_point(f, z0, x, **options) for options in ({}, {"solver": eq.Auto()})
    )
    assert torch.equal(default.value, named.value)
    assert eq.DEQ(f).solver == eq.Auto()


def test_period_is_plain_iteration_in_between() -> None:
    """With a period longer than the solve it is Picard."""
    f, z0, x = linear(spread(-0.5, 0.5, 20))
    picard = eq.fixed_point(f, z0, x, solver=eq.Picard())
    rare = eq.fixed_point(f, z0, x, solver=eq.Anderson(period=100))
    assert torch.equal(rare.value, picard.value)
    assert torch.equal(rare.stats.evals, picard.stats.evals)


def test_solvers_are_plain_values() -> None:
    """Frozen, keyword-only, compared by value, and readable: a run can record them."""
    assert eq.Anderson(history=3) == eq.Anderson(history=3) != eq.Anderson(history=4)
    assert hash(eq.GMRES()) == hash(eq.GMRES())
    assert "history=3" in repr(eq.Anderson(history=3))
    with pytest.raises(AttributeError):
        eq.Anderson().history = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        eq.Anderson(3)  # type: ignore[misc]


@pytest.mark.parametrize("method", [eq.Anderson, functools.partial(eq.Anderson, period=3), eq.Auto])
def test_a_history_longer_than_the_solve_takes_no_more_memory(method) -> None:
    f, z0, x = linear(spread(-0.9, 0.9, 10))
    whole, long = (
        eq.fixed_point(f, z0, x, solver=method(history=history, max_evals=50))
        for history in (50, 10**9)
    )
    assert torch.equal(long.value, whole.value)
    assert torch.equal(long.stats.evals, whole.stats.evals)


# Broyden's method: with limited memory it never ends worse than with all of it.


@pytest.mark.parametrize("norm", [3.0, 6.0])
def test_limited_memory_is_safe(norm: float) -> None:
    """Discarding the oldest update in place diverged in 8 of 10 such nets (||W||_2 = 6)."""
    converged = 0
    for seed in range(3):
        w = with_norm(norm, 50, seed=100 + seed)
        problem = tanh_net("random", w, UNKNOWN, batch=10, seed=seed)
        full = problem.solve(solver=eq.Broyden(rtol=1e-6, max_evals=300)).status == CONVERGED
        converged += int(full.sum())
        for memory in (3, 10, 30):
            limited = problem.solve(solver=eq.Broyden(rtol=1e-6, max_evals=200, memory=memory))
            assert not (limited.status[full] >= eq.Status.DIVERGED).any()
            assert limited.value.isfinite().all()
            # Where it fails, it still returns the best iterate, no worse than the start.
            assert (limited.stats.residual <= 1).all()
    assert converged >= 10


@pytest.mark.parametrize("norm", [0.9, 1.5])
def test_limited_equals_full_where_memory_is_not_exceeded(norm: float) -> None:
    problem = tanh_net("random", with_norm(norm, 50, seed=7), NEWTON)
    full = problem.solve(solver=eq.Broyden(rtol=1e-6))
    assert (full.status == CONVERGED).all()
    enough = problem.solve(solver=eq.Broyden(rtol=1e-6, memory=int(full.stats.evals.max())))
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
