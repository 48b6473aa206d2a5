"""The linear solvers on u = A u + g with known solutions, by their own and through the adjoint."""

import pytest
import torch
from problems import normal, orthogonal, spread, triangular, with_norm, with_spectrum

import equilibria as eq

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status

D, BATCH = 12, 3
MATRICES = {
    "symmetric_.9": with_spectrum(spread(-0.9, 0.9, D), seed=1),
    "semi_definite_.95": with_spectrum(spread(0, 0.95, D), seed=2),
    "negative_4": with_spectrum(spread(-4, 0, D), seed=3),
    "symmetric_2": with_spectrum(spread(-2, 2, D), seed=4),
    "orthogonal_.9": 0.9 * orthogonal(D, seed=5),
    "non_normal_.9": triangular(0.9, 0.3, D, seed=6),
    "gaussian_1.5": with_norm(1.5, D, seed=7),
    "nilpotent": torch.diag(torch.ones(D - 1, dtype=torch.float64), diagonal=1),
    "zero": torch.zeros(D, D, dtype=torch.float64),
}
CONTRACTIONS = {
    "symmetric_.9",
    "semi_definite_.95",
    "orthogonal_.9",
    "non_normal_.9",
    "nilpotent",
    "zero",
    "gaussian_1.5",
}
EVALS = 600


def through_the_adjoint(linear, a, g, **options):
    """u = A u + g as the gradient of <g, z*> for z = A^T z + x."""
    x = torch.zeros_like(g).requires_grad_()
    sol = eq.fixed_point(
        lambda z, x: z @ a + x,
        torch.zeros_like(g),
        x,
        adjoint=eq.Implicit(linear=linear),
        **options,
    )
    (u,) = torch.autograd.grad(sol.value, x, g)
    return u, sol.adjoint


def true_residual(a, u, g):
    """||A u + g - u|| / ||A u + g|| of each sample."""
    image = u @ a.T + g
    return (image - u).norm(dim=1) / image.norm(dim=1)


@pytest.mark.parametrize("rtol", [1e-3, 1e-10])
@pytest.mark.parametrize("linear", [eq.GMRES, eq.BiCGSTAB, eq.Neumann, eq.DirectSolve, eq.Fallback])
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.filterwarnings("ignore::equilibria.solve.SolveWarning")
def test_known_solutions(name: str, linear, rtol: float) -> None:
    """All methods solve these; the Neumann series those of radius below one."""
    a, g = MATRICES[name], normal(BATCH, D, seed=9)
    u, info = through_the_adjoint(linear(rtol=rtol, max_evals=EVALS), a, g)
    residual = true_residual(a, u, g)
    done = info.status == CONVERGED
    assert (residual[done] <= 1.01 * rtol).all()
    torch.testing.assert_close(
        info.stats.residual[done], residual[done], rtol=1e-2, atol=1e-14, check_dtype=False
    )
    if linear is eq.Neumann and name not in CONTRACTIONS:
        assert not done.any()
        return
    assert done.all()
    solution = torch.linalg.solve(torch.eye(D).to(a) - a, g.T).T
    inverse = torch.linalg.matrix_norm(torch.linalg.inv(torch.eye(D).to(a) - a), ord=2)
    error = (u - solution).norm(dim=1)
    assert (error <= 1.1 * inverse * rtol * (solution.norm(dim=1) + error)).all()
    assert (info.stats.evals <= EVALS).all()


@pytest.mark.parametrize("linear", [eq.GMRES, eq.BiCGSTAB])
def test_krylov_ends_in_the_dimension(linear) -> None:
    """GMRES needs at most D products and one that measures; BiCGSTAB two a step."""
    a, g = MATRICES["symmetric_2"], normal(BATCH, D, seed=9)
    _, info = through_the_adjoint(linear(rtol=1e-8, max_evals=EVALS), a, g)
    bound = D + 1 if linear is eq.GMRES else 4 * D
    assert (info.stats.evals <= bound).all() and (info.status == CONVERGED).all()


def test_gmres_is_optimal_within_a_cycle() -> None:
    """After k products its residual is the least over the Krylov space of dimension k."""
    a, g = MATRICES["gaussian_1.5"], normal(1, D, seed=9)
    system = torch.eye(D).to(a) - a
    for k in (1, 3, 6):
        basis = torch.stack([torch.linalg.matrix_power(system, i) @ g[0] for i in range(k)], 1)
        best = torch.linalg.lstsq(system @ basis, g[0]).solution
        wanted = (g[0] - system @ basis @ best).norm()
        linear = eq.GMRES(rtol=1e-12, max_evals=k + 1)
        with pytest.warns(UserWarning):
            u, info = through_the_adjoint(linear, a, g)
        assert info.stats.evals.tolist() == [k + 1]
        assert float((g[0] - system @ u[0]).norm()) == pytest.approx(float(wanted), rel=1e-6)


def test_restart_costs_products_and_saves_vectors() -> None:
    a, g = MATRICES["symmetric_.9"], normal(BATCH, D, seed=9)
    counts = [
        through_the_adjoint(eq.GMRES(restart=restart, rtol=1e-8, max_evals=EVALS), a, g)[1]
        for restart in (3, D)
    ]
    assert all((info.status == CONVERGED).all() for info in counts)
    assert (counts[0].stats.evals > counts[1].stats.evals).all()


def test_neumann_is_the_series() -> None:
    """u_n = g + A g + ... + A^n g; the first n whose residual is small enough is returned."""
    a, g = MATRICES["non_normal_.9"], normal(BATCH, D, seed=9)
    u, info = through_the_adjoint(eq.Neumann(rtol=1e-6, max_evals=EVALS), a, g)
    for i in range(BATCH):
        total = torch.zeros(D, dtype=torch.float64)
        count = 0
        while count < EVALS:
            count += 1
            image = a @ total + g[i]
            if (image - total).norm() <= 1e-6 * image.norm():
                break
            total = image
        torch.testing.assert_close(u[i], total, rtol=1e-5, atol=1e-7)
        assert abs(int(info.stats.evals[i]) - count) <= 1


@pytest.mark.parametrize("linear", [eq.GMRES, eq.BiCGSTAB, eq.Neumann, eq.Fallback])
def test_consistent_singular_systems_are_solved(linear) -> None:
    """As above with g in the range of I - A: iterative methods find a solution."""
    q = orthogonal(D, seed=11)
    values = torch.linspace(-0.5, 0.5, D, dtype=torch.float64)
    values[0] = 1.0
    a = q @ (values[:, None] * q.T)
    g = normal(BATCH, D, seed=12) @ (torch.eye(D).to(a) - a)
    u, info = through_the_adjoint(linear(rtol=1e-8, max_evals=100), a, g)
    assert (info.status == CONVERGED).all()
    assert (true_residual(a, u, g) <= 1.01e-8).all()


@pytest.mark.parametrize("linear", [eq.GMRES, eq.BiCGSTAB, eq.Neumann, eq.DirectSolve, eq.Fallback])
def test_zero_right_hand_side(linear) -> None:
    """u = 0 without a product worth the name, beside samples that need many."""
    a, g = MATRICES["symmetric_.9"], normal(BATCH, D, seed=9)
    g[1] = 0
    u, info = through_the_adjoint(linear(rtol=1e-6, max_evals=EVALS), a, g)
    assert (info.status == CONVERGED).all()
    assert not u[1].any() and info.stats.residual[1] == 0
    if linear is not eq.DirectSolve:
        assert info.stats.evals[1] <= 1 < info.stats.evals[0]


def test_float32_floor_is_a_stall() -> None:
    """A tolerance below float32's rounding cannot be met: it is said, and the answer is good."""
    a = with_spectrum(spread(-0.99, 0.99, D), seed=14).float()
    g = normal(BATCH, D, seed=9).float()
    for linear in (eq.GMRES, eq.BiCGSTAB, eq.Fallback):
        with pytest.warns(UserWarning):
            u, info = through_the_adjoint(linear(rtol=1e-12, max_evals=500), a, g)
        assert (info.status != CONVERGED).any()
        assert (true_residual(a, u, g) < 1e-4).all()
        assert (info.stats.evals <= 500).all()


def test_tree_states_are_one_system() -> None:
    """The leaves of a state are solved together, in one norm."""
    coupling = 0.8

    def f(z, x):
        return {"a": coupling * z["b"] + x, "b": (-coupling * z["a"] + torch.sin(x))}

    g = normal(BATCH, 4, seed=15)
    for linear in (eq.GMRES, eq.BiCGSTAB, eq.Neumann, eq.DirectSolve, eq.Fallback):
        x = normal(BATCH, 4, seed=16).requires_grad_()
        z0 = {"a": torch.zeros_like(g), "b": torch.zeros_like(g)}
        sol = eq.fixed_point(
            f, z0, x, adjoint=eq.Implicit(linear=linear(rtol=1e-10, max_evals=300))
        )
        (got,) = torch.autograd.grad(sol.value["a"], x, g)
        # a = c b + x, b = -c a + sin x: a = (x + c sin x) / (1 + c^2).
        wanted = g * (1 + coupling * torch.cos(x.detach())) / (1 + coupling**2)
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-9)
