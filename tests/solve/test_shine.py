"""What adjoints take from the forward solve: Broyden's matrix, the residual, an earlier adjoint."""

import itertools
import warnings

import pytest
import torch
from maps import Module
from problems import normal, orthogonal, spread, with_norm, with_spectrum
from references import TIGHT, exact_adjoint, from_zero

import equilibria as eq

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status
D = 12
W = with_norm(1.2, D, seed=1)
X = normal(3, D, seed=2)
G = normal(3, D, seed=3)
ZERO = torch.zeros_like(X)


def f(z, x):
    return torch.tanh(z @ W.T + x)


def jacobian(f, z, x) -> torch.Tensor:
    """df/dz of each sample, (batch, width, width)."""
    one = lambda z, x: f(z[None], x[None])[0]  # noqa: E731
    return torch.stack([torch.func.jacrev(one)(*pair) for pair in zip(z, x, strict=True)])


def gradient(adjoint, f=f, x=X, **options):
    """The solution, and dL/dx where L = <G, z*>."""
    x = x.clone().requires_grad_()
    options = {"solver": eq.Broyden(rtol=1e-8), **options}
    sol = from_zero(f, x, adjoint=adjoint, **options)
    (grad,) = torch.autograd.grad(sol.value, x, G[: len(x)].to(x))
    return sol, grad


def of_operand(f, z, x, u):
    """u^T df/dx."""
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(z.detach(), x), x, u)[0]


def broyden_inverse(f, x, evals: int) -> torch.Tensor:
    """-B after so many evaluations of one sample, dense, by the update as it is printed.

    papers: Bai 2022 (thesis), eq. 2.12.
    """
    z = torch.zeros_like(x)
    residual = f(z, x) - z
    b = -torch.eye(x.shape[1], dtype=x.dtype)
    for _ in range(evals - 2):
        step = -(residual @ b.T)
        z = z + step
        new = f(z, x) - z
        change, residual = new - residual, new
        s, y = step[0], change[0]
        b = b + torch.outer(s - b @ y, s @ b) / (s @ b @ y)
    return -b


@pytest.mark.parametrize("max_evals", [1, 2, 3, 4, 9, 100])
def test_the_matrix_is_broydens(max_evals: int) -> None:
    """u = -B^T g with B of each sample's own last evaluation; the thesis prints no sign."""
    solver = eq.Broyden(rtol=1e-8, max_evals=max_evals)
    sol, grad = gradient(eq.Shine(fallback=None), solver=solver)
    for i in range(len(X)):
        one = slice(i, i + 1)
        matrix = broyden_inverse(f, X[one], int(sol.stats.evals[i]))
        wanted = of_operand(f, sol.value[one], X[one], G[one] @ matrix)
        torch.testing.assert_close(grad[one], wanted, rtol=1e-6, atol=1e-7)


def test_a_sample_keeps_the_matrix_that_it_ended_with() -> None:
    """In a batch whose other samples go on much longer, with drop_finished or not."""
    rate = torch.tensor([[0.02], [0.9], [0.5]], dtype=torch.float64)
    a = orthogonal(D, seed=4)

    def g(z, xr):
        x, rate = xr[:, :D], xr[:, D:]
        return rate * torch.sin(z @ a.T) + x

    xr = torch.cat([X, rate], dim=1)

    def of_batch(index, **options):
        x = xr[index].clone().requires_grad_()
        sol = eq.fixed_point(
            g,
            torch.zeros_like(X[index]),
            x,
            solver=eq.Broyden(rtol=1e-9),
            adjoint=eq.Shine(),
            **options,
        )
        return torch.autograd.grad(sol.value, x, G[index])[0], sol

    together, sol = of_batch(slice(0, 3))
    leaving, _ = of_batch(slice(0, 3), drop_finished=True)
    assert sol.stats.evals[0] < sol.stats.evals[2] < sol.stats.evals[1]
    torch.testing.assert_close(leaving, together, rtol=1e-12, atol=1e-13)
    for i in range(3):
        alone, _ = of_batch(slice(i, i + 1))
        torch.testing.assert_close(together[i : i + 1], alone, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("seed", range(5))
def test_beats_the_jacobian_free_gradient_on_average(seed: int) -> None:
    """Cosine with the exact gradient; random maps of norm .9."""
    w = with_norm(0.9, 30, seed=100 + seed)
    x, g = normal(8, 30, seed=seed), normal(8, 30, seed=50 + seed)
    net = lambda z, x: torch.tanh(z @ w.T + x)  # noqa: E731

    def of(adjoint):
        at = x.clone().requires_grad_()
        sol = eq.fixed_point(
            net, torch.zeros_like(x), at, solver=eq.Broyden(rtol=1e-6), adjoint=adjoint
        )
        return torch.autograd.grad(sol.value, at, g)[0].flatten()

    exact = of(eq.Implicit(linear=eq.GMRES(**TIGHT)))
    cosine = lambda a: float(torch.nn.functional.cosine_similarity(a, exact, dim=0))  # noqa: E731
    free, shared, refined = (
        cosine(of(a)) for a in (eq.JacobianFree(), eq.Shine(), eq.Shine(refine=3))
    )
    assert free < shared < refined and refined > 0.99


def test_refinement_is_what_it_says() -> None:
    """The error of u after k steps is (I - M (I - J)^T)^k times that before."""
    errors = []
    for refine in (0, 1, 2):
        sol, grad = gradient(eq.Shine(refine=refine, fallback=None))
        z = sol.value.detach()
        u = exact_adjoint(lambda z: f(z, X), z, G)
        errors.append(grad - of_operand(f, z, X, u))
    for i in range(len(X)):
        one = slice(i, i + 1)
        m = broyden_inverse(f, X[one], int(sol.stats.evals[i])).T
        j = jacobian(f, sol.value[one].detach(), X[one])[0]
        eye = torch.eye(D, dtype=torch.float64)
        step = eye - m @ (eye - j.T)
        inner = 1 - f(sol.value[one].detach(), X[one]) ** 2  # df/dx, a diagonal
        for before, after in itertools.pairwise(errors):
            wanted = ((before[one] / inner) @ step.T) * inner
            torch.testing.assert_close(after[one], wanted, rtol=1e-5, atol=1e-7)


def test_falls_back_where_the_matrix_is_out_of_proportion() -> None:
    """A semi-definite map near one: M is far too large there, and harmless in the other sample."""
    a = with_spectrum(spread(0.0, 0.97, D), seed=8)
    scale = torch.tensor([[1.0], [0.1], [1.0]], dtype=torch.float64)
    g = lambda z, x: scale[: len(z)] * (z @ a.T) + x  # noqa: E731
    _, free = gradient(eq.JacobianFree(), g)
    _, bold = gradient(eq.Shine(fallback=None), g)
    _, careful = gradient(eq.Shine(), g)
    large = bold.norm(dim=1) > 1.8 * G.norm(dim=1)
    assert large.tolist() == [True, False, True]
    torch.testing.assert_close(careful, torch.where(large[:, None], free, bold))


# Higher derivatives, transforms, trees and devices of mischief.


def test_higher_derivatives_hold_the_matrix_constant() -> None:
    """d/dx of u^T df/dx with u = M g fixed: in x directly, and through z* by M again."""
    x = X[:1].clone().requires_grad_()
    sol = from_zero(f, x, solver=eq.Broyden(rtol=1e-8), adjoint=eq.Shine(fallback=None))
    (first,) = torch.autograd.grad(sol.value, x, G[:1], create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    m = broyden_inverse(f, X[:1], int(sol.stats.evals[0])).T
    u = G[:1] @ m.T
    z, at = sol.value.detach().requires_grad_(), X[:1].clone().requires_grad_()
    (direct,) = torch.autograd.grad(f(z, at), at, u, create_graph=True)
    by_z, by_x = torch.autograd.grad(direct.sum(), [z, at])
    wanted = by_x + of_operand(f, z, X[:1], by_z @ m.T)
    torch.testing.assert_close(second, wanted, rtol=1e-6, atol=1e-7)


def test_torch_func() -> None:
    """grad is backward's; jvp is the transpose of vjp; vmap says that it has no matrix."""

    adjoint = eq.Shine(fallback=None)

    def value(x):
        return from_zero(f, x, solver=eq.Broyden(rtol=1e-8), adjoint=adjoint).value

    _, wanted = gradient(eq.Shine(fallback=None))
    got = torch.func.vjp(value, X)[1](G)[0]
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)
    t = normal(3, D, seed=9)
    _, forward = torch.func.jvp(value, (X,), (t,))
    torch.testing.assert_close((forward * G).sum(), (t * got).sum(), rtol=1e-9, atol=1e-10)
    rows = torch.func.jacrev(value)(X)
    torch.testing.assert_close(torch.einsum("bi,bicj->cj", G, rows), got, rtol=1e-9, atol=1e-10)
    with pytest.raises(RuntimeError, match=r"torch\.vmap"):
        torch.vmap(torch.func.grad(lambda x: value(x).sum()))(torch.stack([X, X]))


def test_trees_and_channels_last() -> None:
    """Rows lie in memory as the state does, whatever the gradient that comes in looks like."""
    kernel = 0.15 * normal(2, 2, 3, 3, seed=10)

    def g(z, x):
        image, vector = z
        moved = torch.nn.functional.conv2d(image, kernel, padding=1) + x
        return torch.tanh(moved + 0.1 * vector.sum(1)[:, None, None, None]), 0.3 * torch.cos(
            vector + image.mean((1, 2, 3))[:, None]
        )

    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        x = normal(2, 2, 4, 5, seed=11).to(memory_format=layout).requires_grad_()
        z0 = (torch.zeros(2, 2, 4, 5).double().to(memory_format=layout), torch.zeros(2, 3).double())
        sol = eq.fixed_point(g, z0, x, solver=eq.Broyden(rtol=1e-9), adjoint=eq.Shine(refine=1))
        weight = torch.linspace(-1, 2, 80).double().reshape(2, 2, 4, 5)
        loss = (sol.value[0] * weight).sum() + sol.value[1].square().sum()
        results.append(torch.autograd.grad(loss, x)[0])
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bad_samples_stay_alone(dtype: torch.dtype) -> None:
    """One sample is NaN at once, one diverges late: the others' gradients are what they were."""
    x = X.to(dtype).clone()
    x[1] = torch.nan
    w = W.to(dtype)
    g = lambda z, x: torch.tanh(z @ w.T + x)  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sol, grad = gradient(eq.Shine(), g, x, solver=eq.Broyden(rtol=1e-4))
    assert sol.status.tolist() == [CONVERGED, NONFINITE, CONVERGED]
    alone = gradient(eq.Shine(), g, x[:1], solver=eq.Broyden(rtol=1e-4))[1]
    tolerance = 1e-4 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(grad[:1], alone, rtol=tolerance, atol=tolerance)


def test_in_a_layer() -> None:
    """Training shares the matrix; evaluation keeps none, and may use any solver."""
    cell = Module()
    layer = eq.DEQ(
        cell, solver=eq.Broyden(), adjoint=eq.Shine(), eval_solver=eq.Anderson(), drop_finished=True
    )
    x = normal(2, 3, seed=12)
    layer(x).value.sum().backward()
    assert all(p.grad is not None for p in cell.parameters())
    layer.eval()
    with torch.no_grad():
        assert (layer(x).status == CONVERGED).all()


def test_needs_broyden() -> None:
    with pytest.raises(TypeError, match=r"solver=eq\.Broyden\(\)"):
        gradient(eq.Shine(), solver=eq.Anderson())
    with pytest.raises(ValueError, match="memory=None"):
        gradient(eq.Shine(), solver=eq.Broyden(memory=10))


# An adjoint that follows the forward solve.


@pytest.mark.parametrize("linear", [eq.GMRES, eq.BiCGSTAB, eq.Neumann, eq.Anderson, eq.Broyden])
def test_the_adjoint_follows_the_forward_solve(linear) -> None:
    """Sample by sample: no looser than asked, no tighter than linear.rtol; fewer products."""
    rate = torch.tensor([[0.3], [0.9], [0.99]], dtype=torch.float64)
    g = lambda z, x: rate * torch.sin(z) + x  # noqa: E731
    solver = eq.Picard(rtol=1e-6, max_evals=12)
    sols = {}
    for follow in (None, 1.0, 0.1, 1e9):
        adjoint = eq.Implicit(linear=linear(rtol=1e-8, max_evals=3000), follow=follow)
        sols[follow] = gradient(adjoint, g, solver=solver)[0]
        reached = sols[follow].stats.residual
        tolerance = (reached * (follow or 0.0)).clamp(1e-8, 0.1)
        assert (sols[follow].adjoint.status == CONVERGED).all()
        assert (sols[follow].adjoint.stats.residual <= tolerance).all()
    evals = {follow: sol.adjoint.stats.evals for follow, sol in sols.items()}
    assert (evals[1e9] <= evals[1.0]).all() and (evals[1.0] <= evals[0.1]).all()
    assert (evals[1.0] < evals[None]).any()


@pytest.mark.parametrize("evals", [4, 8, 16, 32])
def test_the_error_of_the_gradient_is_bounded(evals: int) -> None:
    """|error| <= (adjoint residual + L x forward residual) / sigma_min, all by dense matrices."""
    sol, grad = gradient(eq.Implicit(follow=1.0), solver=eq.Picard(rtol=1e-12, max_evals=evals))
    exact_sol, exact = gradient(eq.Implicit(linear=eq.GMRES(**TIGHT)), solver=eq.Anderson(**TIGHT))
    z, best = sol.value.detach(), exact_sol.value.detach()
    eye = torch.eye(D, dtype=torch.float64)
    least = torch.linalg.svdvals(eye - jacobian(f, best, X))[:, -1]
    u = sol.adjoint.value[0]
    adjoint = torch.einsum("bi,bij->bj", u, jacobian(f, z, X)) + G - u
    distance = (z - best).norm(dim=1)
    # tanh'' is at most .77 and |dz -> W dz| at most 1.2: a Lipschitz constant of df/dz and df/dx.
    constant = 0.77 * 1.2 * 1.2
    error = (grad - exact).norm(dim=1)
    bound = adjoint.norm(dim=1) / least + constant * distance * u.norm(dim=1) * (1 + 1 / least)
    assert (error <= bound + 1e-10).all()
    assert (
        adjoint.norm(dim=1)
        <= (1.01 * sol.stats.residual.clamp(1e-4, 0.1)) * (u.norm(dim=1) + adjoint.norm(dim=1))
    ).all()


# Warm starts.


@pytest.mark.parametrize("drop_finished", [False, True])
@pytest.mark.parametrize(
    "adjoint", [eq.Implicit(), eq.Implicit(linear=eq.Broyden()), eq.Shine()], ids=repr
)
def test_warm_starts(adjoint, drop_finished: bool) -> None:
    """From a like problem: fewer evaluations and products, the same derivatives."""
    cold, wanted = gradient(adjoint, drop_finished=drop_finished)
    near, _ = gradient(adjoint, x=X + 1e-6 * normal(3, D, seed=16), drop_finished=drop_finished)
    warm, got = gradient(adjoint, drop_finished=drop_finished, warm=near)
    assert (warm.status == CONVERGED).all()
    assert (warm.stats.evals < cold.stats.evals).all()
    if isinstance(adjoint, eq.Implicit):
        assert (warm.adjoint.status == CONVERGED).all()
        assert (warm.adjoint.stats.evals < cold.adjoint.stats.evals).all()
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
    with pytest.raises(ValueError, match="shapes"):
        gradient(adjoint, x=X[:2], warm=near)


def test_a_warm_start_leaves_shine_a_matrix_of_a_short_path() -> None:
    """At the solution itself nothing is learned: M is the identity."""
    cold, _ = gradient(eq.Shine())
    warm, got = gradient(eq.Shine(), warm=cold)
    assert (warm.stats.evals == 1).all()
    torch.testing.assert_close(got, of_operand(f, warm.value, X, G))


# The papers' own way.
