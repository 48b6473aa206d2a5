"""Random problems with NaN and inf thrown in: no exception, no wrong CONVERGED, no contagion."""

import warnings

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import normal, relative_residual, with_norm

import equilibria as eq

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status

BATCH = 5
FEW = settings(
    max_examples=30,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

solvers = st.sampled_from(
    [
        eq.Picard(max_evals=40),
        eq.Picard(max_evals=40, damping=1.7),
        eq.Anderson(max_evals=40),
        eq.Anderson(period=3, max_evals=40),
        eq.Anderson(max_evals=40, history=1, period=2),
        eq.Anderson(max_evals=40, history=30, ridge=0.0),
        eq.Broyden(max_evals=40),
        eq.Broyden(max_evals=40, memory=1),
        eq.Broyden(max_evals=40, memory=4),
    ]
)
with_products = st.sampled_from(
    [
        eq.NewtonKrylov(max_evals=40),
        eq.NewtonKrylov(max_evals=40, linear=eq.BiCGSTAB()),
        eq.NewtonKrylov(max_evals=40, linear=eq.DirectSolve()),
        eq.Auto(max_evals=40),
        eq.Auto(max_evals=40, history=1, patience=None),
    ]
)
dtypes = st.sampled_from([torch.float32, torch.float64])
widths = st.sampled_from([1, 2, 7])
seeds = st.integers(0, 10**6)
norms = st.sampled_from([0.0, 0.3, 0.95, 2.0, 8.0, 1e6])
bad_values = st.sampled_from([torch.nan, torch.inf, -torch.inf])
injections = st.dictionaries(st.integers(0, BATCH - 1), st.integers(1, 12), max_size=BATCH)


@FEW
@given(st.one_of(solvers, with_products), dtypes, st.integers(1, 9), seeds, norms, st.booleans())
def test_random_nets(solver, dtype, width, seed, norm, linear: bool) -> None:
    """Contractions, chaos and explosions: every status is true, whatever the path."""
    w = with_norm(1.0, width, seed=seed).to(dtype) * norm
    x = normal(BATCH, width, seed=seed + 1).to(dtype)

    def f(z):
        value = z @ w.T + x
        return value if linear else torch.tanh(value)

    z0 = normal(BATCH, width, seed=seed + 2).to(dtype)
    sol = eq.fixed_point(f, z0, solver=solver)
    assert sol.value.isfinite().all()
    assert ((sol.stats.evals >= 1) & (sol.stats.evals <= solver.max_evals)).all()
    eps = torch.finfo(dtype).eps
    # Anew, a product with entries of size `norm` rounds anew.
    rounding = 64 * eps * (1 + norm * sol.value.norm(dim=1)) / (f(sol.value).norm(dim=1) + eps)
    residual = relative_residual(f, sol.value)
    done = sol.status == CONVERGED
    assert (residual[done] <= solver.rtol * 1.01 + rounding[done]).all()
    over = sol.status == MAX_EVALS
    assert (sol.stats.evals[over] == solver.max_evals).all()
    # The best iterate that was evaluated is no worse than the start.
    start = relative_residual(f, z0)
    assert (sol.stats.residual <= start * 1.01 + rounding).all()


linear_solvers = st.sampled_from(
    [
        eq.GMRES(max_evals=30),
        eq.GMRES(max_evals=30, restart=2),
        eq.BiCGSTAB(max_evals=30),
        eq.Neumann(max_evals=30),
        eq.DirectSolve(max_evals=30),
        eq.Anderson(max_evals=30),
        eq.NewtonKrylov(max_evals=30),
        eq.Auto(max_evals=30),
    ]
)


@FEW
@given(linear_solvers, dtypes, st.integers(1, 6), seeds, norms, st.booleans())
def test_random_backward_solves(linear, dtype, width, seed, norm, poison: bool) -> None:
    """A CONVERGED adjoint solves its equation; one that is poisoned says so and stays alone."""
    a = with_norm(1.0, width, seed=seed).to(dtype) * norm
    x = normal(BATCH, width, seed=seed + 1).to(dtype).requires_grad_()
    sol = eq.fixed_point(
        lambda z, x: z @ a.T + x,
        torch.zeros(BATCH, width, dtype=dtype),
        x,
        solver=eq.Picard(max_evals=1),
        adjoint=eq.Implicit(linear=linear),
    )
    g = normal(BATCH, width, seed=seed + 2).to(dtype)
    if poison:
        g[seed % BATCH, 0] = torch.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # df/dx is the identity: the gradient is u itself.
        (u,) = torch.autograd.grad(sol.value, x, g)
    status = sol.adjoint.status
    done = status == CONVERGED
    image = u @ a + g
    gap, scale = (image - u).norm(dim=1), image.norm(dim=1)
    eps = torch.finfo(dtype).eps
    rounding = 64 * eps * (g.norm(dim=1) + (1 + norm) * u.norm(dim=1))
    assert (gap[done] <= linear.rtol * 1.01 * scale[done] + rounding[done]).all()
    if poison:
        bad = seed % BATCH
        assert status[bad] == NONFINITE
        assert u[[i for i in range(BATCH) if i != bad]].isfinite().all()
