"""A solution found elsewhere, made differentiable."""

import pytest
import torch
from maps import BATCH, WIDTH, cell, start
from problems import normal, with_norm
from references import iterate, loss, tight
from torch.func import grad, hessian, jacfwd, jacrev, vmap

import equilibria as eq

W = with_norm(0.7, WIDTH, seed=1)
BIAS = normal(WIDTH, seed=2)
X = normal(BATCH, WIDTH, seed=3)
TIGHT = eq.Implicit(linear=eq.GMRES(rtol=1e-13, restart=60))
CONVERGED, MAX_EVALS, NONFINITE = eq.Status.CONVERGED, eq.Status.MAX_EVALS, eq.Status.NONFINITE


def f(z, x, w=W):
    return cell(z, x, w, BIAS)


def found(x, w=W):
    """The solution by plain iteration, without a graph."""
    with torch.no_grad():
        return iterate(lambda z, x: f(z, x, w), start(), x, steps=200)


def bisect(g, low, high):
    for _ in range(200):
        middle = (low + high) / 2
        left = g(low) * g(middle) <= 0
        low, high = torch.where(left, low, middle), torch.where(left, middle, high)
    return (low + high) / 2


def test_the_value_is_the_one_given_after_one_evaluation():
    z, calls = found(X), []
    x = X.clone().requires_grad_()
    sol = eq.attach(lambda z, x: calls.append(1) or f(z, x), z, x)
    assert torch.equal(sol.value, z) and sol.value is not z and sol.value.requires_grad
    assert (sol.status == CONVERGED).all() and len(calls) == 1
    assert sol.stats.evals.tolist() == [1] * BATCH


@pytest.mark.parametrize("adjoint", [TIGHT, eq.JacobianFree(), eq.NeumannPhantom(), eq.Phantom()])
def test_gradients_are_those_of_a_solve(adjoint):
    z = found(X)
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    at = eq.attach(lambda z, x: f(z, x, w), z, x, adjoint=adjoint)
    solver = eq.Anderson(rtol=1e-14, max_evals=200)
    sol = eq.fixed_point(lambda z, x: f(z, x, w), z, x, solver=solver, adjoint=adjoint)
    torch.testing.assert_close(at.value, sol.value, rtol=1e-10, atol=1e-12)
    wanted = torch.autograd.grad(loss(sol.value), (x, w))
    torch.testing.assert_close(
        torch.autograd.grad(loss(at.value), (x, w)), wanted, rtol=1e-8, atol=1e-9
    )


def test_second_derivatives_of_a_bisection():
    """z cos z = a: d2z/da2 in closed form."""
    a = torch.tensor([[0.2], [0.4]], dtype=torch.float64, requires_grad=True)
    g = lambda z: z * z.cos() - a.detach()  # noqa: E731
    star = bisect(g, torch.zeros(2, 1).double(), torch.full((2, 1), 0.8).double())
    value = eq.attach(lambda z, a: a / z.cos(), star, a, adjoint=TIGHT).value
    (first,) = torch.autograd.grad(value.sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), a)
    slope, bend = star.cos() - star * star.sin(), -2 * star.sin() - star * star.cos()
    torch.testing.assert_close(first, 1 / slope, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(second, -bend / slope**3, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("transform", [jacrev, jacfwd, lambda h: hessian(lambda x: loss(h(x)))])
def test_under_transforms(transform):
    z = found(X)
    at = transform(lambda x: eq.attach(f, z, x, adjoint=TIGHT).value)(X)
    wanted = transform(lambda x: eq.fixed_point(f, start(), x, **tight()).value)(X)
    torch.testing.assert_close(at, wanted, rtol=1e-7, atol=1e-9)


def test_a_mapped_solution():
    xs = normal(3, BATCH, WIDTH, seed=4)
    zs = torch.stack([found(x) for x in xs])

    def of(x, z):
        return loss(eq.attach(f, z, x, adjoint=TIGHT).value)

    wanted = torch.stack([grad(of)(x, z) for x, z in zip(xs, zs, strict=True)])
    torch.testing.assert_close(vmap(grad(of))(xs, zs), wanted)
    assert vmap(lambda x, z: eq.attach(f, z, x).status)(xs, zs).shape == (3, BATCH)


def test_trees_and_shared_operands():
    z = {"a": found(X), "b": [torch.full((BATCH, 1), 2.0, dtype=torch.float64)]}
    scale = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)

    def both(z, x, scale):
        return {"a": f(z["a"], x), "b": [scale * z["b"][0] + 1]}

    exact = eq.Implicit(linear=eq.GMRES(rtol=1e-10))
    sol = eq.attach(both, z, X, eq.shared(scale), adjoint=exact)
    assert (sol.status == CONVERGED).all()
    torch.testing.assert_close(
        torch.autograd.grad(sol.value["b"][0].sum(), scale)[0],
        torch.tensor(BATCH * 4.0, dtype=torch.float64),  # 1 / (1 - scale)^2 each
    )


@pytest.mark.parametrize("coupled", [True, torch.tensor([0, 0, 1, 1])])
def test_rows_that_are_one_sample(coupled):
    mix = lambda z: 0.5 * z.flip(0) + 1  # noqa: E731
    z = torch.full((4, 3), 2.0)
    sol = eq.attach(mix, z, coupled=coupled)
    assert sol.status.tolist() == [CONVERGED] * (1 if coupled is True else 2)


def test_the_tolerances_of_the_solver_decide():
    z = torch.tensor([[1.0], [1.001], [1.1], [torch.nan]], requires_grad=True)
    constant = lambda z: torch.ones_like(z) + 0 * z  # noqa: E731
    tolerances = [({"rtol": 1e-4}, [0, 1, 1, 4]), ({"rtol": 1e-2}, [0, 0, 1, 4])]
    tolerances += [({"rtol": 0.0, "atol": 0.2}, [0, 0, 0, 4])]
    sol = eq.attach(constant, z)
    for given, status in tolerances:
        sol = eq.attach(constant, z, solver=eq.Anderson(**given, max_evals=50))
        assert sol.status.tolist() == status
    torch.testing.assert_close(
        sol.stats.residual[:3], torch.tensor([0.0, 1e-3, 0.1]), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(sol.value, z.detach(), equal_nan=True, rtol=0, atol=0)


def test_a_tolerance_for_each_leaf_and_for_each_row():
    state = (torch.ones(2, 3), torch.tensor([[1.0], [1.05]]))
    ones = lambda z: tuple(torch.ones_like(x) for x in z)  # noqa: E731
    for rtol, status in (((1e-4, 1e-1), [0, 0]), ((1e-1, 1e-4), [0, 1])):
        assert eq.attach(ones, state, solver=eq.Picard(rtol=rtol)).status.tolist() == status
    for per_row, status in ((False, [0]), (True, [1])):
        solver = eq.Picard(rtol=0.04, per_row=per_row)
        together = eq.attach(torch.ones_like, state[1], coupled=True, solver=solver)
        assert together.status.tolist() == status


@pytest.mark.parametrize("power", [-120, 0, 120])
def test_the_value_has_no_unit(power):
    z = 2.0**power * normal(2, 3, 4, 5, seed=7).float().contiguous(
        memory_format=torch.channels_last
    )
    sol = eq.attach(lambda z: z * (1 + 2.0**-16), z)
    assert torch.equal(sol.value, z) and sol.status.tolist() == [CONVERGED] * 2
    torch.testing.assert_close(sol.stats.residual, torch.full((2,), 2.0**-16), rtol=1e-2, atol=0)


def test_a_state_that_is_no_solution_is_named():
    z, x = found(X) + 0.1, X.clone().requires_grad_()
    with pytest.raises(eq.SolveError, match=r"attach: 2 of 2 .*\n.*the residual exceeds"):
        eq.attach(f, z, x, throw=True)
    with pytest.warns(eq.SolveWarning, match="attach: 2 of 2 samples"):
        eq.attach(f, z, x).value.sum().backward()
    with pytest.warns(eq.SolveWarning, match="attach: 2 of 2 samples"):
        vmap(grad(lambda x: eq.attach(f, z, x).value.sum()))(x.detach()[None])


def test_phantom_takes_its_steps_from_there():
    z = found(X) + 0.1
    sol = eq.attach(f, z, X, adjoint=eq.Phantom(steps=2, damping=0.5))
    wanted = z
    for _ in range(2):
        wanted = (wanted + f(wanted, X)) / 2
    torch.testing.assert_close(sol.value, wanted)
    assert (sol.stats.evals >= 4).all()


@pytest.mark.parametrize("adjoint", [eq.Unrolled(), eq.Shine()])
def test_adjoints_of_a_search_are_refused(adjoint):
    with pytest.raises(TypeError, match=f"attach cannot use {type(adjoint).__name__}"):
        eq.attach(f, found(X), X, adjoint=adjoint)


def test_no_gradient_is_handed_to_the_solution():
    z = found(X).requires_grad_()
    x = X.clone().requires_grad_()
    assert torch.autograd.grad(eq.attach(f, z, x).value.sum(), z, allow_unused=True) == (None,)
    with torch.no_grad():
        assert not eq.attach(f, z, x).value.requires_grad


@pytest.mark.parametrize("bad", [{"f": 3}, {"solver": 3}, {"adjoint": 3}])
def test_bad_arguments(bad):
    with pytest.raises(TypeError, match=f"{next(iter(bad))}: expected"):
        eq.attach(**{"f": f, "z_star": found(X), **bad})


def test_inside_a_compiled_program():
    z = found(X)
    program = torch.compile(lambda x: 2 * eq.attach(f, z, 1 * x).value, backend="eager")
    torch.testing.assert_close(program(X), 2 * z)
