"""`stats.error` tells how far a solution is from the fixed point, and `error=` limits that."""

from __future__ import annotations

import copy
import pickle
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from problems import normal
from references import from_zero

import equilibria as eq

SOLVERS: tuple[Any, ...] = (
    eq.Picard(max_evals=3000),
    eq.Anderson(max_evals=300),
    eq.Anderson(period=3, max_evals=300),
    eq.Broyden(max_evals=300),
    eq.NewtonKrylov(max_evals=3000),
    eq.Auto(max_evals=300),
)
LINEAR: tuple[Any, ...] = (
    eq.GMRES(),
    eq.BiCGSTAB(),
    eq.Neumann(max_evals=1000),
    eq.DirectSolve(),
    eq.Fallback(max_evals=300),
    eq.Anderson(max_evals=300),
)
N = 12


def affine(step: float, dtype: torch.dtype = torch.float64) -> tuple[Any, Any, Any]:
    """z + step (J z + x - z) with a J of radius .8, x, and its fixed point."""
    matrix = normal(N, N, seed=0)
    matrix = 0.8 * matrix / torch.linalg.eigvals(matrix).abs().max()
    x = normal(4, N, seed=1)
    solution = torch.linalg.solve(torch.eye(N).double() - matrix, x.T).T
    weight = matrix.to(dtype)
    return lambda z, x: z + step * (z @ weight.T + x - z), x.to(dtype), solution


def relative_error(value: Any, solution: Any) -> Any:
    return (value.double() - solution).norm(dim=1) / solution.norm(dim=1)


def quietly(*arguments: Any, **options: Any) -> eq.Solution:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", eq.SolveWarning)
        return eq.fixed_point(*arguments, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("step", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_the_estimate_is_near_the_error(solver: Any, step: float, dtype: torch.dtype) -> None:
    f, x, solution = affine(step, dtype)
    sol = quietly(f, torch.zeros_like(x), x, solver=solver)
    assert not sol.status.any()
    true = relative_error(sol.value, solution)
    assert sol.stats.error.dtype == dtype
    assert (sol.stats.error < 5 * true).all()
    assert (sol.stats.error > true / 5).all()


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_a_limit_on_the_error_is_met(solver: Any) -> None:
    f, x, solution = affine(0.02)
    loose = quietly(f, torch.zeros_like(x), x, solver=replace(solver, rtol=1e-2))
    sol = from_zero(f, x, solver=replace(solver, rtol=1e-2, error=1e-2), throw=True)
    assert (sol.stats.error <= 0.5e-2).all()
    assert (relative_error(sol.value, solution) < 1e-2).all()
    assert (sol.stats.evals >= loose.stats.evals).all()
    assert (sol.stats.evals > loose.stats.evals).any()


@pytest.mark.parametrize("drop", [False, True])
def test_samples_are_estimated_one_by_one(drop: bool) -> None:
    """Whatever their mates do, and whether those leave the batch."""
    weight = torch.tensor([0.1, 0.5, 0.9, 0.97, 0.3], dtype=torch.float64)
    scale = weight.unsqueeze(1) * (0.5 + 0.5 * torch.rand(5, N, dtype=torch.float64))
    x = normal(5, N, seed=2)

    def f(z: Any, a: Any, x: Any) -> Any:
        return torch.sin(a * z) + x

    for error in (None, 1e-3):
        solver = eq.Auto(max_evals=400, error=error)
        together = quietly(f, torch.zeros_like(x), scale, x, solver=solver, drop_finished=drop)
        for i in range(5):
            own = slice(i, i + 1)
            alone = quietly(f, torch.zeros(1, N).double(), scale[own], x[own], solver=solver)
            found, wanted = together.stats.error[own], alone.stats.error
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=0)
            assert together.stats.evals[i] == alone.stats.evals


def test_a_tree_of_large_leaves_is_multiplied_in_blocks() -> None:
    x = normal(2, 40_000, seed=3), normal(2, 7, 3, seed=4)

    def f(z: Any, x: Any) -> Any:
        return tuple(0.9 * torch.tanh(a) + b for a, b in zip(z, x, strict=True))

    start = tuple(map(torch.zeros_like, x))
    sol = quietly(f, start, x, solver=eq.Picard(rtol=1e-3, max_evals=300))
    exact = quietly(f, start, x, solver=eq.Picard(rtol=1e-12, max_evals=3000))
    flat = [torch.cat([leaf.flatten(1) for leaf in each.value], 1) for each in (sol, exact)]
    true = relative_error(*flat)
    assert ((sol.stats.error < 5 * true) & (sol.stats.error > true / 5)).all()


def test_scaling_by_a_power_of_two_changes_nothing() -> None:
    f, x, _ = affine(0.1, torch.float32)
    errors = []
    for power in (-100, 0, 100):
        scaled = x * 2.0**power
        errors.append(quietly(f, torch.zeros_like(x), scaled, solver=eq.Picard(max_evals=900)))
    for each in errors:
        assert torch.equal(each.stats.error, errors[1].stats.error)


def test_a_small_step_that_converged_is_warned_of() -> None:
    f, x, _ = affine(0.01)
    with pytest.warns(eq.SolveWarning, match=r"some samples CONVERGED.*longest one.*error="):
        from_zero(f, x, solver=eq.Picard(max_evals=3000))


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_an_ordinary_solve_is_not_warned_of(solver: Any) -> None:
    f, x, _ = affine(1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        from_zero(f, x, solver=solver)


def test_an_absolute_tolerance_is_not_warned_of_where_it_is_met_by_the_error() -> None:
    f, x, _ = affine(0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solver = eq.Picard(rtol=1e-6, atol=0.5, max_evals=3000)
        eq.fixed_point(f, torch.zeros_like(x), 1e-2 * x, solver=solver)
    with pytest.warns(eq.SolveWarning, match="CONVERGED"):
        solver = eq.Picard(rtol=0.0, atol=1e-4, max_evals=3000)
        from_zero(f, x, solver=solver)


def test_what_is_not_known_is_nan() -> None:
    f, x, solution = affine(1.0)
    start = torch.zeros_like(x)
    sol = quietly(f, start, x)
    again = quietly(f, start, x, warm=sol)
    assert (again.stats.evals == 1).all()
    assert again.stats.error.isnan().all()
    assert quietly(f, start, x, adjoint=eq.Unrolled()).stats.error.isnan().all()
    assert quietly(f, start, x, adjoint=eq.Phantom()).stats.error.isnan().all()
    assert eq.attach(f, solution, x).stats.error.isnan().all()
    at_rest = quietly(lambda z: z, torch.ones(2, 3))
    assert torch.equal(at_rest.stats.error, torch.zeros(2))
    zero = quietly(lambda z: 0.1 * z, torch.ones(2, 3), solver=eq.Picard(max_evals=300))
    assert torch.equal(zero.stats.error, torch.zeros(2))


def test_an_earlier_iterate_that_is_returned_has_no_estimate() -> None:
    """The last two steps tell of the last iterate."""
    turns = iter(range(100))

    def f(z: Any) -> Any:
        return 0.5 * z + 1 if next(turns) < 3 else 3 * z

    sol = quietly(f, torch.zeros(1, 3), solver=eq.Picard(max_evals=6, rtol=1e-6))
    assert sol.status.item() == eq.Status.MAX_EVALS
    assert sol.stats.error.isnan().all()


def test_a_warm_start_is_solved_on_until_its_error_is_known() -> None:
    f, x, solution = affine(0.05)
    solver = eq.Auto(error=1e-3, max_evals=300)
    sol = quietly(f, torch.zeros_like(x), x, solver=solver, throw=True)
    again = quietly(f, torch.zeros_like(x), x, solver=solver, warm=sol, throw=True)
    assert (again.stats.evals > 1).all()
    assert (relative_error(again.value, solution) < 1e-3).all()


def test_a_path_that_is_differentiated_keeps_the_limit_too() -> None:
    f, x, solution = affine(0.05)
    solver = eq.Picard(error=1e-2, max_evals=1000)
    unrolled = quietly(f, torch.zeros_like(x), x, solver=solver, adjoint=eq.Unrolled(), throw=True)
    plain = quietly(f, torch.zeros_like(x), x, solver=solver)
    assert (relative_error(unrolled.value.detach(), solution) < 1e-2).all()
    assert torch.equal(unrolled.stats.evals, plain.stats.evals)


def test_a_limit_that_rounding_hides_is_said_to_be_the_cause() -> None:
    f, x, _ = affine(1e-4, torch.float32)
    sol = quietly(f, torch.ones_like(x), x, solver=eq.Anderson(error=1e-5, max_evals=300))
    assert (sol.status != eq.Status.CONVERGED).all()
    assert (sol.stats.reason == 4).any()
    with pytest.raises(eq.SolveError, match=r"estimated error is not below half of `error`"):
        eq.fixed_point(
            f, torch.ones_like(x), x, solver=eq.Anderson(error=1e-5, max_evals=300), throw=True
        )


@pytest.mark.parametrize("linear", LINEAR, ids=repr)
def test_the_adjoint_has_an_estimate(linear: Any) -> None:
    f, x, solution = affine(0.05)
    x.requires_grad_()
    g = normal(4, N, seed=5)
    for error in (None, 1e-3):
        sol = eq.attach(f, solution, x, adjoint=eq.Implicit(linear=replace(linear, error=error)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", eq.SolveWarning)
            torch.autograd.grad(sol.value, x, g)
        jacobian = torch.func.jacrev(lambda z: f(z[None], x[:1])[0])(solution[0])
        exact = torch.linalg.solve(torch.eye(N).double() - jacobian.T, g.T).T
        assert sol.adjoint is not None
        true = relative_error(sol.adjoint.value[0], exact)
        estimate = sol.adjoint.stats.error
        assert ((estimate < 8 * true) | (estimate < 1e-9)).all()
        assert (estimate > true / 8).all() or bool((true < 1e-9).all())
        if error is not None:
            assert (estimate <= error / 2).all()
            assert (true < 2 * error).all()


@pytest.mark.parametrize("kind", [eq.Picard, eq.Anderson])
def test_a_limit_holds_for_each_element_of_a_map(kind: Any) -> None:
    x = normal(3, 2, 4, seed=9)

    def solve(x: Any) -> Any:
        solver = kind(error=1e-2, max_evals=200)
        f = lambda z, x: torch.tanh(0.9 * z + x)  # noqa: E731
        return eq.fixed_point(f, torch.zeros_like(x), x, solver=solver, adjoint=eq.Unrolled()).value

    torch.testing.assert_close(torch.vmap(solve)(x), torch.stack([solve(each) for each in x]))


def test_under_vmap_each_element_has_its_own() -> None:
    f, x, _ = affine(0.5)

    def error(x: Any) -> Any:
        return quietly(f, torch.zeros_like(x), x).stats.error

    several = torch.stack([x, 2 * x, x.flip(0)])
    found = torch.vmap(error)(several)
    assert found.shape == (3, 4)
    for one, own in zip(found, several, strict=True):
        torch.testing.assert_close(one, error(own), rtol=1e-3, atol=0)


def test_a_solution_keeps_its_estimate_in_copies() -> None:
    f, x, _ = affine(0.5)
    sol = quietly(f, torch.zeros_like(x), x)
    for other in (pickle.loads(pickle.dumps(sol)), copy.deepcopy(sol), sol.detach()):
        assert torch.equal(other.stats.error, sol.stats.error)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf"), "1e-3", True])
def test_an_impossible_limit_is_refused(wrong: Any) -> None:
    for method in (eq.Auto, eq.GMRES):
        with pytest.raises((TypeError, ValueError), match=r"error="):
            method(error=wrong)


def test_attach_refuses_a_limit_that_one_evaluation_cannot_tell() -> None:
    f, x, solution = affine(1.0)
    with pytest.raises(ValueError, match="one evaluation"):
        eq.attach(f, solution, x, solver=eq.Auto(error=1e-3))


def symmetric() -> tuple[Any, Any, Any]:
    """An affine map whose slow modes come to the fore late: the estimated error rises while the
    residual falls."""
    basis = torch.linalg.qr(normal(16, 16, seed=0))[0]
    weight = basis @ torch.diag(torch.linspace(-0.99, 0.99, 16).double()) @ basis.T
    x = normal(8, 16, seed=1)
    solution = torch.linalg.solve(torch.eye(16).double() - weight, x.T).T
    return lambda z, x: z @ weight + x, x, solution


@pytest.mark.parametrize("solver", [eq.Picard(), eq.Auto()], ids=repr)
def test_no_sample_stalls_while_its_residual_falls(solver: Any) -> None:
    f, x, solution = symmetric()
    limited = replace(solver, error=1e-3, max_evals=2000)
    sol = from_zero(f, x, solver=limited)
    assert not sol.status.any()
    assert (relative_error(sol.value, solution) < 3e-3).all()


def test_a_failed_limit_returns_the_smallest_residual() -> None:
    f, x, _ = symmetric()
    solver = eq.Picard(error=1e-3, max_evals=50, patience=None)
    sol = quietly(f, torch.zeros_like(x), x, solver=solver, trace=True)
    assert (sol.status == eq.Status.MAX_EVALS).all()
    torch.testing.assert_close(sol.stats.residual, sol.stats.trace.amin(0), rtol=1e-12, atol=0)


def test_differences_below_rounding_tell_nothing() -> None:
    """A step of 1e-3 in float32: the residual changes by less than f rounds by."""
    root = normal(50, 10, seed=0)
    hessian = root.T @ root / 50 + 0.1 * torch.eye(10).double()
    hessian, b = hessian / torch.linalg.eigvalsh(hessian).max(), normal(6, 10, seed=1)
    solution = torch.linalg.solve(hessian, b.T).T

    def f(z: Any, b: Any) -> Any:
        return z - 1e-3 * (z @ hessian.to(z.dtype) - b)

    for dtype in (torch.float32, torch.float64):
        solver = eq.Auto(error=1e-3, max_evals=400)
        start = torch.ones(6, 10, dtype=dtype)
        sol = quietly(f, start, b.to(dtype), solver=solver)
        found = sol.status == eq.Status.CONVERGED
        assert (relative_error(sol.value, solution)[found] < 1e-3).all()
        assert bool(found.all()) == (dtype == torch.float64)


@pytest.mark.parametrize("linear", LINEAR, ids=repr)
def test_a_backward_solve_warns_of_its_error(linear: Any) -> None:
    diagonal = torch.linspace(0.1, 1, 10).double()
    b = torch.ones(1, 10, dtype=torch.float64, requires_grad=True)
    words = "the derivative may be wrong"

    def warned(step: float, linear: Any) -> bool | None:
        sol = eq.fixed_point(
            lambda z, b: z - step * (z * diagonal - b),
            (b / diagonal).detach(),
            b,
            adjoint=eq.Implicit(linear=linear),
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sol.value.sum().backward()
        assert sol.adjoint is not None
        converged = not sol.adjoint.status.any()
        return any(words in str(each.message) for each in caught) if converged else None

    wanted = None if isinstance(linear, eq.Neumann) else not isinstance(linear, eq.DirectSolve)
    assert warned(1e-3, replace(linear, rtol=1e-3)) is wanted
    assert warned(1.0, linear) is False
    if isinstance(linear, eq.GMRES):
        assert not warned(1e-3, replace(linear, error=1e-3))


def test_steps_after_the_solution_are_not_judged_by_it() -> None:
    f, x, _ = affine(1.0)
    solver = eq.Auto(error=1e-3)
    with pytest.raises(ValueError, match=r"Phantom: error=0.001 can't be judged"):
        from_zero(f, x, solver=solver, adjoint=eq.Phantom())
    with pytest.raises(ValueError, match=r"advance: error=0.001 can't be judged"):
        eq.solve.advance(f, torch.zeros_like(x), x, solver=solver)
