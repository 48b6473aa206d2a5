"""Samples of several rows: each as if it were alone, and a tolerance for each of its rows."""

import pytest
import torch
from problems import normal
from references import from_zero

import equilibria as eq
from equilibria.solve import Solver

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status

SIZES = (3, 1, 5)
RATES = (0.3, 0.9, 0.6)
INDEX = torch.repeat_interleave(torch.arange(3), torch.tensor(SIZES))
SHUFFLED = torch.tensor([0, 2, 7, 3, 8, 1, 6, 4, 5])
TIGHT = {"rtol": 1e-9, "max_evals": 300}
SOLVERS = [
    eq.Picard(**TIGHT),
    eq.Anderson(**TIGHT),
    eq.Anderson(period=3, **TIGHT),
    eq.Broyden(**TIGHT),
    eq.NewtonKrylov(**TIGHT),
    eq.Auto(**TIGHT),
]
ADJOINTS = [
    eq.Implicit(linear=eq.GMRES(**TIGHT)),
    eq.Implicit(linear=eq.BiCGSTAB(**TIGHT)),
    eq.Implicit(linear=eq.DirectSolve(**TIGHT)),
    eq.Implicit(linear=eq.Fallback(**TIGHT)),
    eq.Implicit(linear=eq.Picard(**TIGHT)),
    eq.Phantom(steps=3),
    eq.NeumannPhantom(),
    eq.JacobianFree(),
    eq.Unrolled(),
]


def adjacency(size: int, seed: int) -> torch.Tensor:
    a = normal(size, size, seed=seed).abs()
    return a / a.sum(1, keepdim=True)


def whole(index: torch.Tensor, rates=RATES) -> torch.Tensor:
    """One matrix in which the samples do not meet, each with a rate of its own."""
    full = torch.zeros(len(index), len(index), dtype=torch.float64)
    for sample, size in enumerate(SIZES):
        rows = (index == sample).nonzero().flatten()
        full[rows[:, None], rows] = rates[sample] * adjacency(size, seed=sample)
    return full


def mix(z: torch.Tensor, x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    return torch.tanh(a @ z) + x


def together(x: torch.Tensor, index: torch.Tensor = INDEX, **options) -> eq.Solution:
    a = eq.shared(whole(index))
    return from_zero(mix, x, a, coupled=index, **options)


def alone(sample: int, x: torch.Tensor, index: torch.Tensor, **options) -> tuple:
    rows = index == sample
    own = x[rows].detach().requires_grad_()
    a = whole(index)[rows][:, rows]
    sol = from_zero(mix, own, eq.shared(a), coupled=True, **options)
    (grad,) = torch.autograd.grad(sol.value.square().sum(), own)
    return sol, grad


@pytest.mark.parametrize("index", [INDEX, INDEX[SHUFFLED]], ids=["sorted", "shuffled"])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_a_group_is_solved_as_if_alone(solver: Solver, index: torch.Tensor) -> None:
    x = normal(9, 4, seed=4).requires_grad_()
    options = {"solver": solver, "adjoint": ADJOINTS[0]}
    sol = together(x, index, **options)
    (grad,) = torch.autograd.grad(sol.value.square().sum(), x)
    assert sol.status.tolist() == [CONVERGED] * 3
    for sample in range(3):
        one, own = alone(sample, x, index, **options)
        rows = index == sample
        # As in promise.py: matrix products of other sizes round otherwise.
        assert abs(int(one.stats.evals) - int(sol.stats.evals[sample])) <= 1
        bound = 10 * solver.rtol / (1 - RATES[sample]) * one.value.norm()
        assert (sol.value[rows] - one.value).norm() <= bound
        torch.testing.assert_close(grad[rows], own, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("adjoint", ADJOINTS, ids=repr)
def test_every_adjoint_sees_groups(adjoint: eq.Implicit) -> None:
    x = normal(9, 4, seed=4).requires_grad_()
    options = {"solver": eq.Picard(**TIGHT), "adjoint": adjoint}
    sol = together(x, **options)
    (grad,) = torch.autograd.grad(sol.value.square().sum(), x)
    if isinstance(adjoint, eq.Implicit):
        assert sol.adjoint is not None
        assert sol.adjoint.status.tolist() == [CONVERGED] * 3
    for sample in range(3):
        one, own = alone(sample, x, INDEX, **options)
        torch.testing.assert_close(grad[sample == INDEX], own, rtol=1e-6, atol=1e-7)
        assert int(one.stats.evals) == int(sol.stats.evals[sample])


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda s: type(s).__name__)
def test_a_sick_group_harms_no_other(solver: Solver) -> None:
    x = normal(9, 4, seed=4)
    good = together(x, solver=solver)
    x[INDEX == 2] = torch.nan
    bad = from_zero(by_blocks, x, coupled=INDEX, solver=solver)
    assert bad.status.tolist() == [CONVERGED, CONVERGED, NONFINITE]
    healthy = INDEX != 2
    torch.testing.assert_close(bad.value[healthy], good.value[healthy], rtol=1e-8, atol=1e-9)


def by_blocks(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """As `mix`, without a zero that multiplies another sample's NaN."""
    a = whole(INDEX)
    parts = [sample == INDEX for sample in range(3)]
    return torch.cat([mix(z[rows], x[rows], a[rows][:, rows]) for rows in parts])


def test_an_absolute_tolerance_counts_a_groups_own_entries() -> None:
    """Beside a mate of 500 rows, a group stops where it stops alone."""
    for solver in (eq.Picard(rtol=0.0, atol=1e-3), eq.Anderson(rtol=0.0, atol=1e-3)):
        counts = []
        for mates in (0, 500):
            index = torch.cat([torch.zeros(4), torch.ones(mates)]).long()
            x = torch.ones(len(index), 2, dtype=torch.float64)
            sol = from_zero(
                lambda z, x: 0.9 * z.cos() * 0.5 + 0.9 * z * 0.5 + x,
                x,
                coupled=index,
                solver=solver,
            )
            counts.append(int(sol.stats.evals[0]))
        assert counts[0] == counts[1]


@pytest.mark.parametrize("linear", [eq.GMRES, eq.BiCGSTAB, eq.Fallback, eq.Picard])
def test_an_absolute_tolerance_of_the_adjoint_too(linear: type) -> None:
    spent = []
    for mates in (0, 60):
        index = torch.cat([torch.zeros(4), torch.ones(mates)]).long()
        x = torch.linspace(0.1, 1, len(index), dtype=torch.float64)[:, None].repeat(1, 2)
        x[:4] = torch.tensor([[0.1, 0.4], [0.3, 0.2], [0.9, 0.7], [0.5, 0.6]])
        x.requires_grad_()
        adjoint = eq.Implicit(linear=linear(rtol=0.0, atol=2e-2))
        sol = from_zero(
            lambda z, x: 0.5 * (z + x).sin() + x,
            x,
            coupled=index,
            solver=eq.Picard(**TIGHT),
            adjoint=adjoint,
        )
        sol.value.sum().backward()
        assert sol.adjoint is not None
        spent.append(int(sol.adjoint.stats.evals[0]))
    assert spent[0] == spent[1]


def test_second_derivatives_and_transforms() -> None:
    x = normal(9, 2, seed=5).requires_grad_()
    options = {"solver": eq.Picard(**TIGHT), "adjoint": ADJOINTS[0], "coupled": INDEX}
    a = eq.shared(whole(INDEX))

    def solution(x: torch.Tensor) -> torch.Tensor:
        return from_zero(mix, x, a, **options).value

    assert torch.autograd.gradgradcheck(
        lambda x: solution(x).square(), x, atol=1e-4, fast_mode=True
    )
    mapped = torch.func.vmap(solution)(torch.stack([x, 2 * x])).detach()
    torch.testing.assert_close(mapped[1], solution(2 * x).detach(), rtol=1e-7, atol=1e-8)
    jacobian = torch.func.jacrev(solution)(x.detach())
    assert float(jacobian[0, 0, 5].detach().abs().max()) == 0.0  # samples do not meet


def test_trees_of_leaves() -> None:
    x, index = normal(9, 3, seed=6), INDEX[SHUFFLED]

    def f(z: dict, x: torch.Tensor) -> dict:
        mean = whole(index) @ z["a"]
        return {"a": mean.tanh() + x + z["b"].mean(1, keepdim=True), "b": 0.2 * z["a"][:, :2].sin()}

    z0 = {"a": torch.zeros(9, 3, dtype=torch.float64), "b": torch.zeros(9, 2, dtype=torch.float64)}
    sol = eq.fixed_point(f, z0, x, coupled=index, solver=eq.Anderson(**TIGHT))
    assert sol.value["b"].shape == (9, 2)
    again = f(sol.value, x)
    torch.testing.assert_close(again["a"], sol.value["a"], rtol=1e-7, atol=1e-8)


def chain(length: int, dtype: torch.dtype) -> tuple:
    """z_h = .9 (z_h + z_(h-1)) / 2 + x_h, x = 0 but at the first node: .45 / .55 a hop."""
    a = 0.45 * (torch.eye(length, dtype=dtype) + torch.eye(length, dtype=dtype).roll(1, 0))
    a[0] = 0.0
    a[0, 0] = 0.9
    x = torch.zeros(length, 1, dtype=dtype)
    x[0] = 1.0
    return a, x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("patience", [20, 3, None])
def test_a_tolerance_by_row_follows_a_signal_to_the_end(dtype: torch.dtype, patience) -> None:
    """Over all rows a relative residual of 1e-3 is met long before the signal has arrived."""
    a, x = chain(150, dtype)
    options = {"rtol": 1e-3, "max_evals": 2000, "patience": patience}

    def solve(**more) -> eq.Solution:
        solver = eq.Picard(**options, **more)
        return eq.fixed_point(lambda z: a @ z + x, torch.zeros_like(x), coupled=True, solver=solver)

    short, full = solve(), solve(per_row=True)
    right = torch.linalg.solve(torch.eye(150, dtype=torch.float64) - a.double(), x.double())
    assert int(short.status) == int(full.status) == CONVERGED
    assert float(short.value[100]) == 0.0
    error = (full.value.double() / right - 1).abs()
    assert float(error.max()) < 2e-2
    f = a @ full.value + x
    worst = ((f - full.value).abs() / f).amax()
    torch.testing.assert_close(full.stats.residual[0], worst, rtol=1e-2, atol=1e-7)


def test_by_row_a_map_that_shrinks_for_ever_is_zero_in_the_end() -> None:
    solver = eq.Picard(per_row=True, max_evals=500)
    sol = eq.fixed_point(lambda z: z / 2, torch.ones(4, 2), coupled=True, solver=solver)
    assert int(sol.status) == CONVERGED and float(sol.stats.residual) == 0
    assert float(sol.value.max()) < 1e-10


@pytest.mark.parametrize("method", [eq.Anderson, eq.Auto, eq.Broyden])
def test_by_row_in_groups(method: type) -> None:
    """The residual of a group is that of its worst row, whoever its mates are."""
    x = normal(9, 4, seed=7) * torch.logspace(0, -6, 9, dtype=torch.float64)[:, None]
    solver = method(rtol=1e-5, per_row=True, max_evals=300)
    sol = together(x, solver=solver, trace=True)
    f = mix(sol.value, x, whole(INDEX))
    rows = (f - sol.value).norm(dim=1) / f.norm(dim=1)
    worst = torch.stack([rows[sample == INDEX].max() for sample in range(3)])
    torch.testing.assert_close(sol.stats.residual, worst, rtol=1e-6, atol=1e-14)
    assert bool((worst <= 1e-5).all())
    assert sol.stats.trace is not None
    last = sol.stats.trace[sol.stats.evals - 1, torch.arange(3)]
    torch.testing.assert_close(last, worst, rtol=1e-6, atol=1e-14)


def test_by_row_under_phantom_and_backward() -> None:
    a, x = chain(40, torch.float64)
    x.requires_grad_()
    solver = eq.Picard(rtol=1e-6, per_row=True, max_evals=2000)
    f = lambda z, x: a @ z + x  # noqa: E731
    for adjoint in (eq.Phantom(steps=2), eq.Implicit(linear=solver)):
        options = {"coupled": True, "solver": solver, "adjoint": adjoint}
        sol = from_zero(f, x, **options)
        assert int(sol.status) == CONVERGED
        (grad,) = torch.autograd.grad(sol.value[-1].sum(), x)
    eye = torch.eye(40, dtype=torch.float64)
    wanted = torch.linalg.solve((eye - a).T, eye[-1])
    torch.testing.assert_close(grad[:, 0], wanted, rtol=1e-3, atol=0.0)


def test_an_absolute_tolerance_by_row() -> None:
    a, x = chain(60, torch.float64)
    sol = eq.fixed_point(
        lambda z: a @ z + x,
        torch.zeros_like(x),
        coupled=True,
        solver=eq.Picard(rtol=0.0, atol=1e-4, per_row=True, max_evals=500),
    )
    assert int(sol.status) == CONVERGED
    assert float((a @ sol.value + x - sol.value).abs().max()) <= 1e-4


def test_a_layer_takes_the_index_at_a_call() -> None:
    weight = torch.nn.Linear(3, 3).double()

    def cell(z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return 0.3 * weight(whole(INDEX) @ z).tanh() + x

    layer = eq.DEQ(cell, coupled=True)
    x = normal(9, 3, seed=1)
    assert layer(x).status.shape == (1,)
    assert layer(x, coupled=INDEX).status.shape == (3,)


@pytest.mark.parametrize("sizes", [(2, 2, 1), (1, 2), (3,), (1, 1, 1)])
def test_groups_of_any_sizes(sizes: tuple) -> None:
    index = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    x = normal(sum(sizes), 3, seed=3)
    sol = eq.fixed_point(
        lambda z: 0.5 * z.sin() + x,
        torch.zeros_like(x),
        coupled=index,
        solver=eq.Anderson(rtol=1e-10, per_row=True),
    )
    assert sol.status.tolist() == [CONVERGED] * len(sizes)
    torch.testing.assert_close(0.5 * sol.value.sin() + x, sol.value, rtol=1e-9, atol=1e-10)


def test_equal_groups_are_samples() -> None:
    """Three groups of four rows are three samples of four rows."""
    x = normal(12, 2, seed=2)
    index = torch.arange(3).repeat_interleave(4)
    a = adjacency(4, seed=1)

    def grouped(z: torch.Tensor) -> torch.Tensor:
        return (0.8 * torch.einsum("ij,bjk->bik", a, z.view(3, 4, 2)).sin()).reshape(12, 2) + x

    one = eq.fixed_point(grouped, torch.zeros_like(x), coupled=index)
    two = eq.fixed_point(
        lambda z: 0.8 * torch.einsum("ij,bjk->bik", a, z).sin() + x.view(3, 4, 2),
        torch.zeros(3, 4, 2, dtype=torch.float64),
    )
    assert one.stats.evals.tolist() == two.stats.evals.tolist()
    torch.testing.assert_close(one.value.view(3, 4, 2), two.value, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("coupled", "error", "words"),
    [
        (torch.zeros(9), TypeError, "int64"),
        (torch.zeros(8, dtype=torch.int64), ValueError, "9 rows"),
        (torch.tensor([0, 0, 0, 0, 2, 2, 2, 2, 2]), ValueError, "sample 1 has no rows"),
        (torch.tensor([0] * 8 + [10**12]), ValueError, "9 rows can't be"),
        (torch.tensor([0, 0, 0, 0, -1, 2, 2, 2, 2]), ValueError, ">= 0"),
        ("graph", TypeError, "expected a bool"),
    ],
)
def test_mistakes(coupled, error: type, words: str) -> None:
    x = normal(9, 2, seed=1)
    with pytest.raises(error, match=words):
        eq.fixed_point(lambda z: 0.5 * z + x, torch.zeros_like(x), coupled=coupled)


def test_more_mistakes() -> None:
    x = normal(9, 2, seed=1)
    with pytest.raises(ValueError, match="exclude each other"):
        eq.fixed_point(
            lambda z: 0.5 * z + x, torch.zeros_like(x), coupled=INDEX, drop_finished=True
        )
    with pytest.raises(TypeError, match="per_row"):
        eq.Picard(per_row=1)
    with pytest.raises(ValueError, match="per_row = True would be ignored"):
        eq.Fallback(first=eq.Picard(per_row=True))
    with pytest.raises(ValueError, match="vmap"):
        torch.func.vmap(
            lambda i: eq.fixed_point(lambda z: 0.5 * z + x, torch.zeros_like(x), coupled=i).value
        )(torch.stack([INDEX, INDEX]))
