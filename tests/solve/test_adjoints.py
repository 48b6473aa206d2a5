"""Every adjoint against its formula, by dense matrices or by a loop written out."""

import itertools

import pytest
import torch
from problems import normal, with_norm
from references import (
    INEXACT,
    TIGHT,
    Clone,
    Counted,
    exact_adjoint,
    from_zero,
    iterate,
    vector_jacobian,
)

import equilibria as eq

B, D = 2, 4
W = with_norm(1.2, D, seed=1)


def f(z, x):
    """tanh(W z + x), radius near .6."""
    return torch.tanh(z @ W.T + x)


def setting():
    """z0, an operand that requires a gradient, and the incoming gradient g."""
    x = normal(B, D, seed=2).requires_grad_()
    return torch.zeros(B, D, dtype=torch.float64), x, normal(B, D, seed=3)


def operand_product(z, x, u):
    """u^T df/dx at z."""
    return torch.autograd.grad(f(z, x), x, u)[0]


def gradient(adjoint, solver, **options):
    """The solution and the gradient of <g, z*> with respect to the operand."""
    z0, x, g = setting()
    sol = eq.fixed_point(f, z0, x, solver=solver, adjoint=adjoint, **options)
    (grad,) = torch.autograd.grad(sol.value, x, g)
    return sol, grad


LINEAR = [eq.GMRES, eq.BiCGSTAB, eq.Neumann, eq.DirectSolve]
LINEAR += [eq.Picard, eq.Anderson, eq.Broyden, eq.NewtonKrylov, eq.Auto]


@pytest.mark.parametrize(
    ("linear", "solver"),
    [
        *((linear, eq.Anderson(**TIGHT)) for linear in LINEAR),
        (eq.DirectSolve, eq.Picard(max_evals=3)),
    ],
    ids=str,
)
def test_implicit_is_exact(linear, solver) -> None:
    """u = (I - J^T)^-1 g, then u^T df/dx. papers: Bai et al. 2019, eq. 10.

    Also far from z*: the formula is that of the iterate returned, with its own J.
    """
    sol, grad = gradient(eq.Implicit(linear=linear(**TIGHT)), solver)
    _, x, g = setting()
    z = sol.value.detach()
    u = exact_adjoint(lambda z: f(z, x.detach()), z, g)
    torch.testing.assert_close(grad, operand_product(z, x, u), rtol=1e-9, atol=1e-10)


def test_implicit_reports_its_backward_solve() -> None:
    z0, x, g = setting()
    sol = eq.fixed_point(f, z0, x, adjoint=eq.Implicit(linear=eq.GMRES(rtol=1e-7)))
    assert sol.adjoint is None
    sol.value.backward(g)
    assert sol.adjoint.status.tolist() == [eq.Status.CONVERGED] * B
    assert sol.adjoint.stats.evals.shape == (B,) and (sol.adjoint.stats.evals > 1).all()
    assert (sol.adjoint.stats.residual <= 1e-7).all()


class Cut(Clone):
    """Through which no gradient passes."""

    @staticmethod
    def backward(ctx, g):
        return None


def test_where_no_gradient_comes_in_nothing_is_solved() -> None:
    z0, x, _ = setting()
    sol = eq.fixed_point(f, z0, x)
    Cut.apply(sol.value).sum().backward()
    assert sol.adjoint is None and x.grad is None


def test_f_is_evaluated_once_more_in_backward() -> None:
    z0, x, g = setting()
    counted = Counted(f)
    sol = eq.fixed_point(counted, z0, x)
    forward = counted.calls
    assert forward == sol.stats.evals.max()
    sol.value.backward(g)
    assert counted.calls == forward + 1


SERIES = [(eq.JacobianFree(), 1, 1.0)]
SERIES += [
    (eq.NeumannPhantom(steps=steps, damping=damping), steps, damping)
    for steps, damping in itertools.product([1, 2, 5], [0.5, 1.0])
]


@pytest.mark.parametrize(("adjoint", "steps", "damping"), SERIES, ids=str)
def test_adjoints_that_are_a_series(adjoint, steps: int, damping: float) -> None:
    """A = damping (I + B + ... + B^(k-1)) df/dx, B = damping J + (1 - damping) I, at z*.

    papers: Bai 2022 (thesis), eq. 5.12; 5.16 with one step.
    """
    sol, grad = gradient(adjoint, eq.Anderson(rtol=1e-3))
    _, x, g = setting()
    z = sol.value.detach()
    jacobian = vector_jacobian(lambda z: f(z, x.detach()), z)
    eye = torch.eye(len(jacobian)).to(jacobian)
    factor = damping * jacobian + (1 - damping) * eye
    total = sum((torch.linalg.matrix_power(factor, i) for i in range(steps)), 0 * eye)
    u = (damping * total.T @ g.reshape(-1)).reshape(B, D)
    torch.testing.assert_close(grad, operand_product(z, x, u), rtol=1e-11, atol=1e-12)


class Once(eq.Adjoint):
    """u = g + A g."""

    def solve(self, product, g):
        return [a + x for a, x in zip(product(g), g, strict=True)]


@pytest.mark.parametrize(
    "adjoint",
    [eq.NeumannPhantom(), eq.NeumannPhantom(steps=3, damping=1.0), eq.JacobianFree(), Once()],
    ids=repr,
)
def test_forward_mode_is_the_transpose_of_backward(adjoint) -> None:
    """Of an adjoint that is not exact too, to the last digits."""
    z0, x, g = setting()
    t = normal(B, D, seed=4)

    def value(x):
        return eq.fixed_point(f, z0, x, adjoint=adjoint).value

    _, forward = torch.func.jvp(value, (x.detach(),), (t,))
    (backward,) = torch.autograd.grad(value(x), x, g)
    torch.testing.assert_close((g * forward).sum(), (backward * t).sum(), rtol=1e-12, atol=0)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("damping", [0.5, 1.0])
def test_phantom(steps: int, damping: float) -> None:
    """k damped steps from the solver's answer, unrolled. papers: Bai 2022 (thesis), eq. 5.11.

    The value is the iterate after these steps; they are counted, and its residual is measured.
    """
    solver = eq.Anderson(rtol=1e-2)
    sol, grad = gradient(eq.Phantom(steps=steps, damping=damping), solver)
    z0, x, g = setting()
    with torch.no_grad():
        solved = eq.fixed_point(f, z0, x, solver=solver)
    value = iterate(f, solved.value, x, steps=steps, damping=damping)
    torch.testing.assert_close(sol.value, value, rtol=1e-12, atol=1e-13)
    (wanted,) = torch.autograd.grad(value, x, g)
    torch.testing.assert_close(grad, wanted, rtol=1e-11, atol=1e-12)
    gap = f(value, x) - value
    torch.testing.assert_close(
        sol.stats.residual, gap.norm(dim=1) / f(value, x).norm(dim=1), rtol=1e-9, atol=0
    )
    assert (sol.stats.evals >= solved.stats.evals + steps).all()
    assert (sol.stats.evals <= solved.stats.evals + steps + 1).all()


def test_phantom_counts_its_evaluations() -> None:
    z0, x, g = setting()
    for adjoint in (eq.Phantom(steps=3), eq.Unrolled()):
        counted = Counted(f)
        sol = eq.fixed_point(counted, z0, x, adjoint=adjoint, solver=eq.Picard(rtol=1e-3))
        assert counted.calls == sol.stats.evals.max()
        sol.value.backward(g)


def test_phantoms_meet_at_the_fixed_point() -> None:
    """At z* the two phantom gradients coincide; with many steps both are exact."""
    solver = eq.Anderson(**TIGHT)
    for steps in (1, 3):
        _, unrolled = gradient(eq.Phantom(steps=steps, damping=0.6), solver)
        _, neumann = gradient(eq.NeumannPhantom(steps=steps, damping=0.6), solver)
        torch.testing.assert_close(unrolled, neumann, rtol=1e-9, atol=1e-10)
    _, exact = gradient(eq.Implicit(linear=eq.DirectSolve(**TIGHT)), solver)
    _, many = gradient(eq.NeumannPhantom(steps=200, damping=0.8), solver)
    torch.testing.assert_close(many, exact, rtol=1e-9, atol=1e-9)


def test_phantoms_approach_the_exact_gradient() -> None:
    """The cosine with the exact gradient rises with the steps."""
    solver = eq.Anderson(**TIGHT)
    _, exact = gradient(eq.Implicit(linear=eq.DirectSolve(**TIGHT)), solver)
    cosines = []
    for steps in (1, 3, 9, 27):
        _, grad = gradient(eq.NeumannPhantom(steps=steps, damping=0.8), solver)
        cosines.append(float(torch.cosine_similarity(grad.flatten(), exact.flatten(), dim=0)))
    assert cosines == sorted(cosines) and cosines[-1] > 0.999 and cosines[0] > 0


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("solver", [eq.Picard, eq.Anderson, eq.Broyden])
def test_unrolled_to_the_end_is_exact(solver, checkpoint: bool) -> None:
    """Every solver can be unrolled; converged, its gradient is that of z*."""
    adjoint = eq.Unrolled(checkpoint=checkpoint)
    sol, grad = gradient(adjoint, solver(rtol=1e-13, max_evals=100))
    assert (sol.stats.residual < 1e-12).all()
    _, exact = gradient(eq.Implicit(linear=eq.DirectSolve(**TIGHT)), eq.Anderson(**TIGHT))
    torch.testing.assert_close(grad, exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("adjoint", INEXACT, ids=repr)
def test_inexact_adjoints_reach_weights_that_f_closes_over(adjoint) -> None:
    """A closed-over tensor gets the same gradient as the operand that it could be."""
    z0, x, g = setting()
    v = with_norm(0.8, D, seed=5).requires_grad_()
    w = torch.sin(v)
    options = {"solver": eq.Picard(rtol=1e-3), "adjoint": adjoint}

    closed = eq.fixed_point(lambda z, x: torch.tanh(z @ w.T + x), z0, x, **options)
    given = eq.fixed_point(lambda z, x, w: torch.tanh(z @ w.T + x), z0, x, eq.shared(w), **options)
    got = torch.autograd.grad(closed.value, (v, x), g, retain_graph=True)
    wanted = torch.autograd.grad(given.value, (v, x), g)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-13)
    assert wanted[0].abs().max() > 0


@pytest.mark.parametrize(("steps", "damping"), [(1, 1.0), (3, 0.8)])
def test_states_under_phantom_are_the_iterates_after_its_steps(steps, damping):
    def f(z, x):
        return torch.tanh(0.5 * z + x)

    x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3).requires_grad_()
    adjoint = eq.Phantom(steps=steps, damping=damping)
    sol = from_zero(f, x, adjoint=adjoint, states=(2,))
    z = from_zero(f, x, states=(2,)).states[0].detach()
    for _ in range(steps):
        z = (1 - damping) * z + damping * f(z, x)
    torch.testing.assert_close(sol.states[0], z)
    (gradient,) = torch.autograd.grad(sol.states[0].square().sum(), x)
    (expected,) = torch.autograd.grad(z.square().sum(), x)
    torch.testing.assert_close(gradient, expected)
    with torch.no_grad():
        unseen = from_zero(f, x, adjoint=adjoint, states=(2,))
    torch.testing.assert_close(unseen.states[0], z)


@pytest.mark.filterwarnings("ignore::equilibria.SolveWarning")
def test_a_state_stays_where_it_was_if_phantom_steps_overflow():
    x = torch.tensor([[1.0], [3e38]], requires_grad=True)
    z0 = torch.full((2, 1), 2e38)
    options = {"solver": eq.Picard(max_evals=2), "states": (1,)}
    sol = eq.fixed_point(
        lambda z, x: z + x, z0, x, adjoint=eq.Phantom(steps=1, damping=1.0), **options
    )
    assert sol.status[1] == eq.Status.NONFINITE
    assert sol.states[0].isfinite().all()
    (gradient,) = torch.autograd.grad(sol.states[0].sum(), x)
    assert gradient.tolist() == [[1.0], [0.0]]
