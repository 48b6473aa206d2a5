"""Powers of two change nothing, and zero is a fixed point like any other."""

import itertools
from typing import Any

import pytest
import torch
from problems import normal
from references import every_solver, from_zero

import equilibria as eq

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status
SOLVERS = every_solver(rtol=1e-5, max_evals=200)
ADJOINTS: dict[str, eq.Adjoint] = {
    "Implicit": eq.Implicit(),
    "Phantom": eq.Phantom(),
    "Unrolled": eq.Unrolled(),
    "JacobianFree": eq.JacobianFree(),
}
MATRIX = (0.8 * torch.linalg.qr(normal(6, 6, seed=1))[0]).float()
X = normal(5, 6, seed=2).float()


def solve(unit: float, solver: eq.Solver, **options: Any) -> eq.Solution:
    x = unit * X
    f = lambda z, x: unit * torch.tanh((z / unit) @ MATRIX) + x  # noqa: E731
    return from_zero(f, x, solver=solver, **options)


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("name", SOLVERS)
def test_scaling_by_a_power_of_two_changes_nothing(name: str, drop: bool) -> None:
    wanted = solve(1.0, SOLVERS[name], drop_finished=drop, trace=True, states=(3,))
    assert (wanted.status == CONVERGED).all()
    for power in (-120, -66, -60, -31, 31, 66, 120):
        unit = 2.0**power
        found = solve(unit, SOLVERS[name], drop_finished=drop, trace=True, states=(3,))
        assert torch.equal(found.status, wanted.status)
        if power > -100:  # below, f itself rounds to numbers that are not normal
            assert torch.equal(found.value / unit, wanted.value)
            assert torch.equal(found.states[0] / unit, wanted.states[0])
            assert torch.equal(found.stats.evals, wanted.stats.evals)
            assert torch.equal(found.stats.residual, wanted.stats.residual)
            assert found.stats.trace is not None and wanted.stats.trace is not None
            assert torch.equal(found.stats.trace.nan_to_num(), wanted.stats.trace.nan_to_num())
        torch.testing.assert_close(found.value / unit, wanted.value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", SOLVERS)
def test_samples_of_every_scale_in_one_batch(name: str) -> None:
    units = torch.tensor([2.0**-100, 2.0**-40, 1.0, 2.0**45, 2.0**100])[:, None]
    f = lambda z, x, u: u * torch.tanh((z / u) @ MATRIX) + x  # noqa: E731
    x = units * X
    found = from_zero(f, x, units, solver=SOLVERS[name])
    wanted = solve(1.0, SOLVERS[name])
    assert torch.equal(found.status, wanted.status)
    assert torch.equal(found.value / units, wanted.value)


@pytest.mark.parametrize("adjoint", ADJOINTS)
@pytest.mark.parametrize("power", [-66, 66])
def test_gradients_at_every_scale(power: int, adjoint: str) -> None:
    grads = []
    for unit in (1.0, 2.0**power):
        k = torch.tensor(1.0, requires_grad=True)
        f = lambda z, x, u=unit, k=k: u * k * torch.tanh((z / u) @ MATRIX) + x  # noqa: E731
        x = unit * X
        sol = from_zero(f, x, adjoint=ADJOINTS[adjoint], solver=eq.Anderson(rtol=1e-6))
        grads += torch.autograd.grad((sol.value / unit).sum(), k)
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-5, atol=1e-6)


def test_an_absolute_tolerance_has_the_units_of_the_state() -> None:
    for unit in (1.0, 2.0**-60, 2.0**60):
        solver = eq.Picard(rtol=0.0, atol=1e-3 * unit)
        sol = solve(unit, solver)
        image = unit * torch.tanh((sol.value / unit) @ MATRIX) + unit * X
        size = ((image - sol.value) / unit).square().mean(1).sqrt()
        assert (sol.status == CONVERGED).all() and (size <= 1e-3).all() and (size > 1e-4).all()


def test_a_map_of_large_numbers_is_solved() -> None:
    x = torch.ones(2, 4) * 2.0**66
    sol = eq.fixed_point(lambda z, x: 0.5 * z + x, torch.zeros(2, 4), x)
    assert (sol.status == CONVERGED).all()
    torch.testing.assert_close(sol.value, 2 * x, rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SOLVERS)
def test_an_equilibrium_of_zero_is_found(name: str, dtype: torch.dtype) -> None:
    """A bias-free cell, or a padded row, from a start that is not zero."""
    start = torch.ones(3, 2, dtype=dtype) * torch.tensor([[1.0], [0.0], [1e6]], dtype=dtype)
    for f in (lambda z: 0.5 * z, lambda z: torch.tanh(0.3 * z)):
        sol = eq.fixed_point(f, start, solver=SOLVERS[name], throw=True)
        assert (sol.status == CONVERGED).all()
        assert (sol.value.abs() <= 1e-10 * start.abs()).all()
        assert sol.stats.residual.tolist() == [0, 0, 0]


@pytest.mark.parametrize("patience", [1, 2, 5, 20])
def test_a_state_that_still_shrinks_towards_zero_has_not_stalled(patience: int) -> None:
    """Its relative residual is the same all the way, of its length 40 % are left at each look."""
    rate = 0.4 ** (1 / patience)
    solver = eq.Picard(patience=patience, max_evals=1000)
    sol = eq.fixed_point(lambda z: rate * z, torch.ones(3, 2), solver=solver)
    assert (sol.status == CONVERGED).all() and sol.stats.residual.tolist() == [0, 0, 0]
    assert (sol.value <= 1e-10).all()


@pytest.mark.parametrize("name", SOLVERS)
def test_a_padded_row_that_starts_warm_converges(name: str) -> None:
    x = X.clone()
    x[1] = 0
    f = lambda z, x: torch.tanh(z @ MATRIX) + x  # noqa: E731
    first = eq.fixed_point(f, torch.ones_like(x), x, solver=SOLVERS[name], throw=True)
    again = from_zero(f, x, solver=SOLVERS[name], warm=first, throw=True)
    assert (again.status == CONVERGED).all() and (again.stats.evals <= 2).all()


def test_a_warm_start_that_is_no_zero_forgets_how_large_the_state_once_was() -> None:
    """Frame by frame the answer falls by 1e5: in float32 none of them is zero."""
    x = X.clone()
    sol = eq.fixed_point(lambda z, x: 0.5 * z + x, 1e3 * torch.ones_like(x), x)
    for _ in range(4):
        x = 1e-5 * x
        sol = eq.fixed_point(lambda z, x: 0.5 * z + x, sol.value, x, warm=sol)
        assert (sol.status == CONVERGED).all()
        torch.testing.assert_close(sol.value, 2 * x, rtol=1e-2, atol=0)


def test_a_small_answer_far_from_the_start_is_not_taken_for_zero() -> None:
    """z = .5 z + .5 from 1e8: the answer is 1, not what is small beside the start."""
    for dtype, far in ((torch.float32, 1e8), (torch.float64, 1e20)):
        start = torch.full((1, 3), far, dtype=dtype)
        sol = eq.fixed_point(lambda z: 0.5 * z + 0.5, start, solver=eq.Picard(max_evals=300))
        assert sol.status.tolist() == [CONVERGED]
        torch.testing.assert_close(sol.value, torch.ones_like(start), rtol=1e-3, atol=0)


def test_the_trace_ends_at_the_residual() -> None:
    """Whatever is too small to be squared."""
    x = torch.full((1, 4), 1e-39)
    for solver in (eq.Picard(), eq.Anderson()):
        sol = from_zero(lambda z, x: 0.5 * z + x, x, solver=solver, trace=True)
        assert sol.stats.trace is not None
        assert sol.stats.trace[-1].tolist() == sol.stats.residual.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", SOLVERS)
def test_an_equilibrium_that_is_zero_has_a_gradient(name: str, dtype: torch.dtype) -> None:
    """Though its relative residual is 0 by definition, and not by measurement."""
    a = (MATRIX.to(dtype) / 2).requires_grad_()
    sol = eq.fixed_point(
        lambda z: z @ a, torch.ones(3, 6, dtype=dtype), solver=SOLVERS[name], adjoint=eq.Implicit()
    )
    assert (sol.status == CONVERGED).all()
    sol.value.sum().backward()
    assert a.grad is not None and bool((a.grad.abs() < 1e-3).all())


def test_squares_that_overflow_are_a_divergence() -> None:
    """f is finite: what leaves the range is the length of its residual."""
    evals = itertools.count(1)

    def jumps(z):
        return torch.full_like(z, 1e30) if next(evals) == 3 else 0.9 * torch.cos(z)

    def begins_small(z):
        return torch.where(z == 0, 1e-35, 0.5 * z + 1)

    for f, start in ((jumps, 1.0), (begins_small, 0.0)):
        sol = eq.fixed_point(f, torch.full((1, 3), start), solver=eq.Picard())
        assert (sol.status == DIVERGED).all() and bool(torch.isfinite(sol.value).all())
