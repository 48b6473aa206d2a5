"""The error of a gradient is bounded by the two tolerances, or a status says that one was missed.

For z* = f(z*, p), u = (I - J)^-T g and the gradient P^T u, with J = df/dz and P = df/dp:

    ||error|| <= (||P|| e_b + L e_f) / sigma,  L = ||P|| L_J / sigma + L_P,

sigma the least singular value of I - J, L_J and L_P the Lipschitz constants of z -> J(z)^T u and
z -> P(z)^T u. The tolerances are relative, and a ratio of RMS norms is one of Euclidean norms:
e_f = rtol ||f(z)||, e_b = rtol ||J^T u + g||. The first 1 / sigma turns a residual into an error.
"""

import itertools
import warnings
from dataclasses import dataclass

import pytest
import torch
from problems import normal, orthogonal, spread, triangular, with_norm, with_spectrum
from torch import Tensor

import equilibria as eq

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status

WIDTH, BATCH = 8, 3
# z and u move from the solution to where the solver stopped: constants are taken over the way.
ALONG = torch.linspace(0, 1, 5, dtype=torch.float64)
SAFETY = 1.1

WEIGHTS = {
    "contraction": with_norm(0.9, WIDTH, seed=1),
    "symmetric": with_spectrum(spread(-0.95, 0.95, WIDTH), seed=2),
    "orthogonal": 0.97 * orthogonal(WIDTH, seed=3),
    "non_normal": triangular(0.9, 0.6, WIDTH, seed=4),
    "expanding": with_spectrum(spread(-3.0, 0.9, WIDTH), seed=5),
}


def f(z: Tensor, x: Tensor, w: Tensor) -> Tensor:
    """tanh(W z + x)."""
    return torch.tanh(z @ w.T + x)


@dataclass(frozen=True)
class Truth:
    """One sample's solution and gradient, by dense linear algebra."""

    x: Tensor
    w: Tensor
    g: Tensor
    z: Tensor
    u: Tensor

    @classmethod
    def of(cls, x: Tensor, w: Tensor, g: Tensor, near: Tensor) -> "Truth":
        """By Newton's method from where the solver stopped."""
        eye, z = torch.eye(WIDTH, dtype=torch.float64), near
        for _ in range(30):
            slope = 1 - f(z, x, w) ** 2
            z = z + torch.linalg.solve(eye - slope[:, None] * w, f(z, x, w) - z)
        assert (f(z, x, w) - z).norm() < 1e-13
        jacobian = (1 - f(z, x, w) ** 2)[:, None] * w
        return cls(x, w, g, z, torch.linalg.solve(eye - jacobian.T, g))

    def pulled(self, z: Tensor) -> Tensor:
        """J(z)^T u and P(z)^T u, p = (x, W), in one vector."""
        _, pull = torch.func.vjp(f, z, self.x, self.w)
        return torch.cat([part.flatten() for part in pull(self.u)])

    @property
    def gradient(self) -> Tensor:
        """P^T u."""
        return self.pulled(self.z)[WIDTH:]

    def constants(self, found: Tensor) -> tuple[float, float, float]:
        """sigma, ||P|| and L between the solution and where a solver stopped."""
        z = torch.lerp(self.z, found, ALONG[:, None])
        derivatives = torch.func.jacrev(f, argnums=(0, 1, 2))
        jacobian, *of_p = torch.func.vmap(derivatives, in_dims=(0, None, None))(z, self.x, self.w)
        curvature = torch.func.vmap(torch.func.jacrev(self.pulled))(z)
        eye = torch.eye(WIDTH, dtype=torch.float64)
        sigma = float(torch.linalg.matrix_norm(eye - jacobian, ord=-2).min())
        of_p = largest(torch.cat([part.reshape(len(z), WIDTH, -1) for part in of_p], dim=2))
        lipschitz = of_p * largest(curvature[:, :WIDTH]) / sigma + largest(curvature[:, WIDTH:])
        return sigma, of_p, lipschitz


def largest(matrices: Tensor) -> float:
    """Largest spectral norm."""
    return float(torch.linalg.matrix_norm(matrices, ord=2).max())


@dataclass(frozen=True)
class Outcome:
    """One entry a sample.

    Attributes:
        error: of the gradient with respect to (x, W).
        allowed: the bound by the tolerances.
        reached: the bound by the residuals that were measured.
        done: did both solves converge?
    """

    error: Tensor
    allowed: Tensor
    reached: Tensor
    done: Tensor


def solve(name: str, solver, adjoint, seed: int = 7) -> Outcome:
    """Each sample has its own copy of W, so that its gradient is its own."""
    x = normal(BATCH, WIDTH, seed=seed).requires_grad_()
    w = WEIGHTS[name].expand(BATCH, -1, -1).clone().requires_grad_()
    g = normal(BATCH, WIDTH, seed=seed + 1)
    sol = eq.fixed_point(
        lambda z, x, w: torch.tanh((w @ z[:, :, None])[:, :, 0] + x),
        torch.zeros(BATCH, WIDTH, dtype=torch.float64),
        x,
        w,
        solver=solver,
        adjoint=adjoint,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", eq.SolveWarning)
        grads = torch.autograd.grad(sol.value, (x, w), g)
    found = torch.cat([part.flatten(1) for part in grads], dim=1)
    errors, allowed, reached = [], [], []
    tolerance = torch.full((BATCH,), adjoint.linear.rtol, dtype=torch.float64)
    if adjoint.follow is not None:
        tolerance = tolerance.maximum((adjoint.follow * sol.stats.residual).clamp_max(0.1))
    for i in range(BATCH):
        z = sol.value[i].detach()
        truth = Truth.of(x[i].detach(), w[i].detach(), g[i], z)
        errors.append((found[i] - truth.gradient).norm())
        image = f(z, truth.x, truth.w).norm()
        size = sol.adjoint.value[0][i].norm() * (1 + tolerance[i])  # ||J^T u + g||
        sigma, of_p, lipschitz = truth.constants(z)
        for into, forward, backward in [
            (allowed, solver.rtol, tolerance[i]),
            (reached, sol.stats.residual[i], sol.adjoint.stats.residual[i]),
        ]:
            bound = (of_p * backward * size + lipschitz * forward * image) / sigma
            into.append(SAFETY * bound)
    done = (sol.status == CONVERGED) & (sol.adjoint.status == CONVERGED)
    return Outcome(torch.stack(errors), torch.stack(allowed), torch.stack(reached), done)


def forward(method, rtol: float, **options):
    return method(rtol=rtol, max_evals=400, **options)


LINEAR = [eq.Fallback, eq.GMRES, eq.BiCGSTAB, eq.Neumann, eq.DirectSolve, eq.Anderson, eq.Broyden]
ITERATIVE = [linear for linear in LINEAR if linear is not eq.DirectSolve]
METHODS = [eq.Picard, eq.Anderson, eq.Broyden, eq.NewtonKrylov, eq.Auto]
TOLERANCES = [(1e-2, 1e-2), (1e-2, 1e-8), (1e-8, 1e-2), (1e-5, 1e-5)]
MAY_FAIL = (eq.Picard, eq.Neumann)  # where the spectral radius is near 1 or above
ROUNDING = 1e-12


@pytest.mark.parametrize(
    ("name", "tolerances"), list(zip(WEIGHTS, itertools.cycle(TOLERANCES))), ids=str
)
def test_within_the_bound(name: str, tolerances: tuple[float, float]) -> None:
    """Every solver and every adjoint; and the bound is no empty one."""
    ratios = []
    pairs = [(method, eq.Fallback) for method in METHODS] + [(eq.Anderson, x) for x in LINEAR[1:]]
    for method, linear in pairs:
        adjoint = eq.Implicit(linear=linear(rtol=tolerances[1], max_evals=400))
        out = solve(name, method(rtol=tolerances[0], max_evals=400), adjoint)
        assert out.done.all() or method in MAY_FAIL or linear in MAY_FAIL
        assert (out.error <= out.allowed + ROUNDING)[out.done].all()
        assert (out.error <= out.reached + ROUNDING)[out.done].all()
        ratios.append((out.reached / out.error)[out.done & (out.reached > ROUNDING)])
    assert torch.cat(ratios).max() < 300


@pytest.mark.parametrize("name", WEIGHTS)
def test_an_adjoint_that_follows_is_within_its_bound(name: str) -> None:
    """Its tolerance is what the forward solve reached, where that is the looser one."""
    adjoint = eq.Implicit(linear=eq.GMRES(rtol=1e-8, max_evals=400), follow=1.0)
    out = solve(name, eq.Anderson(rtol=1e-3, max_evals=400), adjoint)
    assert out.done.all()
    assert (out.error <= out.allowed + ROUNDING).all()


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_looser_solve_breaks_the_bound_of_a_tighter_one(name: str) -> None:
    """What the tests above assert is not true of any gradient."""
    tight = eq.GMRES(rtol=1e-8, max_evals=400)
    good = solve(name, eq.Anderson(rtol=1e-8, max_evals=400), eq.Implicit(linear=tight))
    for rtols in [(1e-2, 1e-8), (1e-8, 1e-2)]:
        loose = eq.Implicit(linear=eq.GMRES(rtol=rtols[1], max_evals=400))
        out = solve(name, eq.Anderson(rtol=rtols[0], max_evals=400), loose)
        assert (out.error > good.allowed).any()


@pytest.mark.parametrize(
    ("linear", "budgets"),
    list(zip(ITERATIVE, [(2, 400), (400, 2), (5, 5)] * 2, strict=True)),
    ids=str,
)
def test_beyond_the_bound_only_with_a_status_that_says_so(linear, budgets) -> None:
    told = False
    for name in WEIGHTS:
        adjoint = eq.Implicit(linear=linear(rtol=1e-6, max_evals=budgets[1]))
        out = solve(name, eq.Anderson(rtol=1e-6, max_evals=budgets[0]), adjoint)
        beyond = out.error > out.allowed + ROUNDING
        assert not (beyond & out.done).any()
        told = told or bool(beyond.any())
    assert told


# --- a backward solve that fails -----------------------------------------------------------------


def unsolved(linear, x=None, **options):
    """A solution whose adjoint can't be found in two products; what it depends on."""
    w = WEIGHTS["expanding"]
    x = normal(BATCH, WIDTH, seed=3).requires_grad_() if x is None else x
    sol = eq.fixed_point(
        lambda z, x: torch.tanh(z @ w.T + x),
        torch.zeros(BATCH, WIDTH, dtype=torch.float64),
        x,
        solver=eq.Broyden(rtol=1e-8, max_evals=400),
        adjoint=eq.Implicit(linear=linear(rtol=1e-10, max_evals=2)),
        **options,
    )
    return sol, x


@pytest.mark.parametrize("linear", ITERATIVE)
def test_every_failed_backward_warns_and_says_so(linear) -> None:
    for _ in range(2):  # Python shows a warning once; ours is shown each time
        sol, x = unsolved(linear)
        with pytest.warns(eq.SolveWarning, match="3 of 3 samples did not converge") as caught:
            (grad,) = torch.autograd.grad(sol.value.sum(), x, retain_graph=True)
        assert len(caught) == 1
        assert (sol.adjoint.status != CONVERGED).all()
        assert (sol.adjoint.stats.residual > 1e-10).all()
        assert grad.isfinite().all()
        with pytest.warns(eq.SolveWarning):
            torch.autograd.grad(sol.value.sum(), x)


@pytest.mark.parametrize("linear", ITERATIVE)
def test_a_failed_backward_raises_under_throw(linear) -> None:
    sol, x = unsolved(linear, throw=True)
    with pytest.raises(eq.SolveError, match="backward"):
        torch.autograd.grad(sol.value.sum(), x)


@pytest.mark.parametrize("linear", ITERATIVE)
def test_second_derivatives_and_tangents_that_fail_warn_too(linear) -> None:
    sol, x = unsolved(linear)
    with pytest.warns(eq.SolveWarning):
        (grad,) = torch.autograd.grad(sol.value.pow(2).sum(), x, create_graph=True)
    with pytest.warns(eq.SolveWarning):
        torch.autograd.grad(grad.sum(), x)
    with pytest.warns(eq.SolveWarning, match="tangent"):
        torch.func.jvp(lambda x: unsolved(linear, x)[0].value, (x.detach(),), (x.detach(),))


@pytest.mark.parametrize("linear", LINEAR)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_cotangent_that_is_no_number_is_reported_of_its_sample(linear, bad: float) -> None:
    x = normal(BATCH, WIDTH, seed=3).requires_grad_()
    w = WEIGHTS["contraction"]
    sol = eq.fixed_point(
        lambda z, x: torch.tanh(z @ w.T + x),
        torch.zeros(BATCH, WIDTH, dtype=torch.float64),
        x,
        adjoint=eq.Implicit(linear=linear(max_evals=400)),
    )
    g = torch.ones_like(sol.value)
    g[1, 2] = bad
    with pytest.warns(eq.SolveWarning, match="NONFINITE"):
        torch.autograd.grad(sol.value, x, g)
    assert [int(code) for code in sol.adjoint.status] == [0, NONFINITE, 0]
