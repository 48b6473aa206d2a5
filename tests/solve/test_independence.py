"""A sample's value, status and counts are its own: batch mates, scale and compaction leave them."""

from dataclasses import replace

import pytest
import torch
from problems import BY_NAME, Problem, normal
from promise import assert_as_promised
from references import every_solver, from_zero, loss

import equilibria as eq

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status

SOLVERS = [*every_solver(rtol=1e-5).values()]

# Samples of an elementwise map: easy ones, slow ones, one without a fixed point, one that
# oscillates, one that diverges, one that turns NaN at the first evaluation and one later.
KINDS = torch.tensor(
    [
        # rate, slope, root
        [0.1, 0.0, 0.0],
        [0.9, 0.0, 0.0],
        [0.99, 0.0, 0.0],
        [0.0, -1.0, 0.0],
        [0.0, 30.0, 0.0],
        [0.0, 0.0, -1.0],
        [0.0, 0.0, 0.5],
        [0.5, -0.4, 0.0],
    ]
)
LIPSCHITZ = {0: 0.1, 1: 0.9, 2: 0.99, 7: 0.9}
"""Of the contractions among them."""
NAN_AT_ONCE = 5
ENTRIES = 6
OFFSETS = normal(len(KINDS), ENTRIES, seed=1).float()


def f(z, kind, offset):
    """Elementwise, and each sample another map."""
    rate, slope, root = kind.unbind(1)
    value = rate[:, None] * torch.cos(z) + slope[:, None] * z + offset
    with_root = root[:, None] != 0
    return torch.where(with_root, torch.sqrt(root[:, None] - z), value)


def solve(index, solver, **options):
    index = torch.as_tensor(index)
    z0 = torch.zeros(len(index), ENTRIES)
    return eq.fixed_point(f, z0, KINDS[index], OFFSETS[index], solver=solver, **options)


def assert_same(got, wanted, solver, places, index) -> None:
    """Each sample `(i, j)` of `places` is what is promised; `index` says its kind, by j.

    Plain iteration is elementwise, as f is: all samples are the same bit for bit.
    """
    for i, j in places:
        kind = int(index[j])
        if isinstance(solver, eq.Picard):
            assert_as_promised(got, i, wanted, j, rtol=0, lipschitz=0, exact=True)
        elif kind in LIPSCHITZ:
            options = {"rtol": solver.rtol, "lipschitz": LIPSCHITZ[kind]}
            assert_as_promised(got, i, wanted, j, **options)
        elif kind == NAN_AT_ONCE:
            for sol, k in ((got, i), (wanted, j)):
                assert sol.status[k] == NONFINITE and sol.stats.evals[k] == 1
        assert got.value[i].isfinite().all()


@pytest.mark.parametrize("drop_finished", [False, True])
@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_alone_or_in_company(solver, drop_finished: bool) -> None:
    index = range(len(KINDS))
    together = solve(index, solver, drop_finished=drop_finished)
    assert {CONVERGED, NONFINITE} <= set(together.status.tolist())
    assert len(together.stats.evals.unique()) >= 4
    for i in index:
        assert_same(solve([i], solver), together, solver, [(0, i)], index)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_order_and_company_do_not_matter(solver) -> None:
    order = torch.randperm(len(KINDS), generator=torch.Generator().manual_seed(3)).tolist()
    index = range(len(KINDS))
    assert_same(solve(order, solver), solve(index, solver), solver, list(enumerate(order)), index)
    index = [1, 5, 1, 2, 1]
    twice = solve(index, solver)
    assert_same(twice, twice, solver, [(0, 2), (0, 4)], index)


WIDTHS = [
    (1, torch.float32),
    (50, torch.float32),
    (784, torch.float32),
    (5000, torch.float64),
    (40_000, torch.float32),
]


@pytest.mark.parametrize(("width", "dtype"), WIDTHS, ids=str)
def test_width_does_not_matter(width: int, dtype: torch.dtype) -> None:
    """Kernels of matrix products and sums depend on the batch at some widths."""
    for solver in SOLVERS if width < 40_000 else SOLVERS[2::3]:
        check_width(solver, width, dtype)


def check_width(solver, width: int, dtype: torch.dtype) -> None:
    x = normal(4, width, seed=4).to(dtype)
    # In float32 a slower map lets Broyden amplify rounding to a count or two.
    rates = (0.1, 0.97 if dtype == torch.float64 else 0.9, 0.5, -0.9)
    rate = torch.tensor(rates, dtype=dtype)[:, None]
    g = lambda z, x, rate: rate * torch.sin(z) + x  # noqa: E731
    together = from_zero(g, x, rate, solver=solver)
    assert (together.status == CONVERGED).sum() >= 3
    exact = isinstance(solver, eq.Picard)
    for i in range(4):
        one = slice(i, i + 1)
        alone = eq.fixed_point(g, torch.zeros_like(x[one]), x[one], rate[one], solver=solver)
        options = {"rtol": solver.rtol, "lipschitz": abs(rates[i]), "exact": exact}
        assert_as_promised(together, i, alone, 0, **options)


@pytest.mark.parametrize("solver", SOLVERS[::3], ids=repr)
def test_threads_do_not_matter(solver) -> None:
    """A long sum that several threads share is cut in pieces where it is the only one."""
    x = normal(2, 40_000, seed=4)
    rate = torch.tensor([[0.1], [0.7]], dtype=torch.float64)
    g = lambda z, x, rate: rate * torch.sin(z) + x  # noqa: E731
    threads = torch.get_num_threads()
    found = []
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            found.append(from_zero(g, x, rate, solver=solver))
        alone = eq.fixed_point(g, torch.zeros_like(x[1:]), x[1:], rate[1:], solver=solver)
    finally:
        torch.set_num_threads(threads)
    options = {"rtol": solver.rtol, "lipschitz": 0.7, "exact": isinstance(solver, eq.Picard)}
    assert_as_promised(found[0], 1, found[1], 1, **options)
    assert_as_promised(alone, 0, found[1], 1, **options)


@pytest.mark.parametrize("solver", [s for s in SOLVERS if getattr(s, "damping", 1) == 1], ids=repr)
def test_matrix_products_too(solver) -> None:
    """One row of a matrix product rounds otherwise alone than in a batch."""
    for name in ("tanh/norm_.9", "tree", "image", "linear/symmetric_.9"):
        check_products(solver, BY_NAME[name])


def check_products(solver, problem: Problem) -> None:
    solver = replace(solver, rtol=1e-9, max_evals=300)
    together = problem.solve(solver=solver)
    # 1 / (1 - L) stands for ||(I - J)^-1||, which is known and no larger.
    for i, norm in enumerate(problem.condition.tolist()):
        alone = problem.sample(i).solve(solver=solver)
        assert_as_promised(alone, 0, together, i, rtol=solver.rtol, lipschitz=1 - 1 / max(norm, 1))


# Maps that mix samples.

MIX = torch.tensor([[0.0, 0.8, 0.0], [0.0, 0.0, 0.8], [0.8, 0.0, 0.0]], dtype=torch.float64)


def mixing(z, x):
    """Each sample is driven by the next one."""
    return torch.tanh(MIX @ z + x)


@pytest.mark.parametrize("adjoint", [eq.Implicit(linear=eq.GMRES(rtol=1e-10)), eq.Unrolled()])
def test_coupled_equals_flattened(adjoint) -> None:
    """Coupled, a batch is the same problem as one long sample."""
    x = normal(3, 4, seed=9)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    solver = eq.Anderson(rtol=1e-10)
    z0 = torch.zeros(3, 4, dtype=torch.float64)
    coupled = eq.fixed_point(mixing, z0, a, coupled=True, solver=solver, adjoint=adjoint)
    flat = eq.fixed_point(
        lambda z, x: mixing(z[0], x[0])[None], z0[None], b[None], solver=solver, adjoint=adjoint
    )
    torch.testing.assert_close(coupled.value, flat.value[0], rtol=1e-12, atol=1e-13)
    assert int(coupled.stats.evals) == int(flat.stats.evals)
    assert coupled.status.tolist() == flat.status.tolist() == [CONVERGED]
    torch.testing.assert_close(coupled.stats.residual, flat.stats.residual, rtol=1e-3, atol=1e-15)
    torch.testing.assert_close(
        torch.autograd.grad(loss(coupled.value), a)[0],
        torch.autograd.grad(loss(flat.value[0]), b)[0],
        rtol=1e-9,
        atol=1e-10,
    )
    if coupled.adjoint is not None:  # one linear system
        assert coupled.adjoint.status.tolist() == [CONVERGED]
