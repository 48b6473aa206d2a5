"""CONVERGED means that the residual has fallen, not that the state has grown beside it."""

import itertools
import math

import pytest
import torch
from problems import normal, orthogonal
from references import from_zero
from torch import Tensor
from typing_extensions import override

import equilibria as eq
from equilibria.solve import convergence, private
from equilibria.solve.convergence import GROWTH, LARGEST_SHARE, SHARE
from equilibria.solve.solvers import Point, Solver, Stepper

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status
MAPS, D = 60, 6

SOLVERS: dict[str, dict] = {
    "Picard": {"solver": eq.Picard(rtol=1e-2, max_evals=600)},
    "Picard damped": {"solver": eq.Picard(rtol=1e-2, damping=0.7, max_evals=600, patience=None)},
    "Anderson": {"solver": eq.Anderson(rtol=1e-3, max_evals=300)},
    "Anderson period 3": {"solver": eq.Anderson(rtol=1e-3, period=3, max_evals=300)},
    "Anderson(period=3)": {"solver": eq.Anderson(period=3, max_evals=300)},
    "Broyden": {"solver": eq.Broyden(rtol=1e-3)},
    "Broyden 5": {"solver": eq.Broyden(memory=5)},
    "NewtonKrylov": {"solver": eq.NewtonKrylov(rtol=1e-3, max_evals=100)},
    "Auto": {"solver": eq.Auto(max_evals=200)},
    "learning": {**eq.profiles.learning()},
    "learning loose": {**eq.profiles.learning(rtol=1e-2)},
    "science": {**eq.profiles.science(rtol=1e-6)},
    "absolute": {"solver": eq.Anderson(atol=1e-3, rtol=1e-3, max_evals=300)},
    "Unrolled": {"solver": eq.Anderson(rtol=1e-3, max_evals=60), "adjoint": eq.Unrolled()},
    "Phantom": {"solver": eq.Broyden(rtol=1e-3), "adjoint": eq.Phantom(steps=3)},
    "drop_finished": {"solver": eq.Broyden(rtol=1e-3), "drop_finished": True},
}


class Unsolvable:
    """z + b (1 + .5 tanh(W z)), z + b sqrt(1 + |z|^2 / 4), z + b (1 + |z| / 4), in turn.

    ||f(z) - z|| is at least half of ||f(0)|| everywhere, and 1 at the origin to within a factor 4.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        sizes = torch.logspace(-0.6, 0.6, MAPS, dtype=torch.float64)[torch.randperm(MAPS)]
        b = normal(MAPS, D, seed=1)
        b = sizes[:, None] * b / b.square().mean(1, keepdim=True).sqrt()
        self.b = b.to(dtype)
        self.w = normal(MAPS, D, D, seed=2).to(dtype)
        self.kind = torch.arange(MAPS)[:, None] % 3
        self.z0 = normal(MAPS, D, seed=3).to(dtype)

    def operands(self) -> tuple[Tensor, ...]:
        return self.b, self.w, self.kind

    def __call__(self, z: Tensor, b: Tensor, w: Tensor, kind: Tensor) -> Tensor:
        bounded = 1 + 0.5 * torch.tanh((w @ z.unsqueeze(2)).squeeze(2))
        root = (1 + z.square() / 4).sqrt()
        return z + b * torch.where(
            kind == 0, bounded, torch.where(kind == 1, root, 1 + z.abs() / 4)
        )


def least_residual(f: Unsolvable, z: Tensor) -> Tensor:
    """||f(z) - z|| over its value at the origin, from what f adds to z, which is not rounded."""
    added = f(z.double(), *(x.double() if x.is_floating_point() else x for x in f.operands()))
    return (added - z.double()).norm(dim=1) / f.b.double().norm(dim=1)


@pytest.mark.parametrize(
    ("name", "dtype"), list(zip(SOLVERS, itertools.cycle((torch.float32, torch.float64)))), ids=str
)
def test_maps_without_a_fixed_point(name: str, dtype: torch.dtype) -> None:
    f = Unsolvable(dtype)
    assert (least_residual(f, 10 * f.z0) > 0.3).all()
    with torch.no_grad():
        sol = eq.fixed_point(f, f.z0, *f.operands(), **SOLVERS[name])
    assert not (sol.status == CONVERGED).any()
    assert sol.value.isfinite().all()


def test_the_relative_test_alone_would_take_them(monkeypatch) -> None:
    """What these maps are for: they break the solvers that believe the relative residual."""
    monkeypatch.setattr(convergence, "GROWTH", float("inf"))
    f, taken = Unsolvable(torch.float64), 0
    for name in ("Picard", "Broyden", "learning"):
        sol = eq.fixed_point(f, f.z0, *f.operands(), **SOLVERS[name])
        taken += int((sol.status == CONVERGED).sum())
    assert taken > MAPS / 2


@pytest.mark.parametrize("drop_finished", [False, True])
def test_where_the_device_is_asked_every_few_evaluations(drop_finished: bool, monkeypatch) -> None:
    """Beside samples that converge after more evaluations than are remembered one by one."""
    solver = eq.Picard(rtol=1e-2, max_evals=400, patience=None)
    rate = torch.tensor([1.0, 0.5, 0.999, 0.98, 1.0], dtype=torch.float64)
    f = lambda z, r: r[:, None] * z + 1  # noqa: E731
    z0 = torch.zeros(5, 3, dtype=torch.float64)
    wanted = eq.fixed_point(f, z0, rate, solver=solver, drop_finished=drop_finished)
    assert wanted.status.tolist() == [MAX_EVALS, CONVERGED, MAX_EVALS, CONVERGED, MAX_EVALS]
    monkeypatch.setattr(private, "free_to_read", lambda tensor: False)
    found = eq.fixed_point(f, z0, rate, solver=solver, drop_finished=drop_finished)
    assert torch.equal(found.status, wanted.status)
    assert torch.equal(found.stats.evals, wanted.stats.evals)
    assert torch.equal(found.value, wanted.value)
    assert torch.equal(found.stats.residual, wanted.stats.residual)


def test_under_vmap() -> None:
    solver = eq.Picard(rtol=1e-2, max_evals=450, patience=None)

    def solve(rate: Tensor) -> Tensor:
        z0 = torch.zeros(1, 3, dtype=torch.float64)
        options = {"solver": solver, "adjoint": eq.Unrolled()}
        return eq.fixed_point(lambda z: rate * z + 1, z0, **options).status

    rates = torch.tensor([1.0, 0.5, 0.98], dtype=torch.float64)
    assert torch.func.vmap(solve)(rates).flatten().tolist() == [MAX_EVALS, CONVERGED, CONVERGED]


def test_a_slow_map_converges_once_its_residual_has_fallen() -> None:
    """The residual of .99 z + 1 is .99^k: .03 at k = 349; a looser tolerance asks for less."""
    z0 = torch.zeros(1, 1, dtype=torch.float64)
    for rtol, share in ((1e-1, LARGEST_SHARE), (1e-2, 0.1), (1e-3, SHARE)):
        solver = eq.Picard(rtol=rtol, max_evals=5000)
        sol = eq.fixed_point(lambda z: 0.99 * z + 1, z0, solver=solver)
        evals = math.log(share) / math.log(0.99) + 1
        assert sol.status.tolist() == [CONVERGED] and abs(int(sol.stats.evals) - evals) <= 1
        assert abs(sol.value.item() / 100 - 1) < share * 1.01


@pytest.mark.parametrize("rtol", [1e-1, 1e-3])
def test_what_has_not_grown_pays_nothing(rtol: float, monkeypatch) -> None:
    """Contractions from zero, warm starts, starts at the answer: counts of the relative test."""
    a, x = 0.7 * orthogonal(D, seed=5), normal(40, D, seed=6)
    f = lambda z, x: torch.tanh(z @ a) + x  # noqa: E731
    star = from_zero(f, x, solver=eq.Broyden(rtol=1e-13)).value
    starts = (torch.zeros_like(x), star + 1e-2 * normal(40, D, seed=7), star)

    def counts() -> list[Tensor]:
        solvers = (eq.Picard(rtol=rtol), eq.Anderson(rtol=rtol), eq.Auto(rtol=rtol))
        sols = [eq.fixed_point(f, z0, x, solver=s) for z0 in starts for s in solvers]
        assert all((sol.status == CONVERGED).all() for sol in sols)
        return [sol.stats.evals for sol in sols]

    found = counts()
    assert all((evals == 1).all() for evals in found[-3:])
    monkeypatch.setattr(convergence, "GROWTH", float("inf"))
    assert all(torch.equal(a, b) for a, b in zip(found, counts(), strict=True))


@pytest.mark.parametrize("power", [-40, 30])
def test_units_of_a_power_of_two_change_nothing(power: int) -> None:
    unit = 2.0**power
    rate = torch.tensor([0.99, 1.0, 0.5, 1.5], dtype=torch.float64)[:, None]

    def solve(unit: float) -> eq.Solution:
        f = lambda z: rate * z + unit  # noqa: E731
        z0 = torch.full((4, 2), 0.25 * unit, dtype=torch.float64)
        return eq.fixed_point(f, z0, solver=eq.Picard(rtol=1e-2, max_evals=500))

    one, other = solve(1.0), solve(unit)
    assert one.status.tolist() == [CONVERGED, STALLED, CONVERGED, STALLED]
    assert torch.equal(one.status, other.status) and torch.equal(one.stats.evals, other.stats.evals)
    assert torch.equal(one.value * unit, other.value)


class Told(Solver):
    """Goes where it is told."""

    @override
    def start(self, tracked: bool, jacobian: object = None) -> Stepper:
        return _Told()


class _Told(Stepper):
    def __init__(self) -> None:
        self.stations = iter([1e6, 1.9999, 1e6])

    @override
    def step(self, now: Point) -> list[Tensor]:
        return [torch.full_like(now.z[0], next(self.stations))]

    @override
    def select(self, index: Tensor) -> None:
        raise AssertionError("nobody leaves")


@pytest.mark.parametrize("returns", ["best", "last"])
def test_a_state_that_was_held_back_is_not_returned_for_a_solution(returns: str) -> None:
    """Its relative residual, 1e-6 far out, is the least of all; the solution comes after it."""
    f = lambda z: torch.where(z > 100, z + 1, 0.5 * z + 1)  # noqa: E731
    z0 = torch.zeros(1, 2, dtype=torch.float64)
    sol = eq.fixed_point(f, z0, solver=Told(rtol=1e-3), returns=returns)
    assert sol.status.tolist() == [CONVERGED] and sol.stats.evals.tolist() == [3]
    assert torch.equal(sol.value, torch.full_like(z0, 1.9999))
    assert sol.stats.residual.item() == pytest.approx(0.5e-4 / 1.99995, rel=1e-6)


def test_the_residual_told_of_a_state_that_was_held_back_is_its_relative_one() -> None:
    z0 = torch.zeros(1, 2, dtype=torch.float64)
    sol = eq.fixed_point(lambda z: z + 1, z0, solver=eq.Broyden(rtol=1e-1, max_evals=40))
    assert sol.status.tolist() != [CONVERGED]
    image = sol.value + 1
    relative = (image - sol.value).norm() / image.norm()
    torch.testing.assert_close(sol.stats.residual[0], relative)


def test_phantom_steps_are_judged_from_the_start() -> None:
    """Where the solve had not arrived, f(z0) is evaluated once more, and counted."""
    z0 = torch.zeros(2, 3, dtype=torch.float64)
    adjoint = eq.Phantom(steps=30, damping=1.0)
    solver = eq.Picard(rtol=1e-1, max_evals=3)
    away = eq.fixed_point(lambda z: z + 1, z0, solver=solver, adjoint=adjoint)
    assert (away.status == MAX_EVALS).all() and (away.stats.evals == 3 + 31 + 1).all()
    there = eq.fixed_point(
        lambda z: 0.5 * z + 1, z0, solver=eq.Picard(max_evals=3), adjoint=adjoint
    )
    assert (there.status == CONVERGED).all() and (there.stats.evals == 3 + 31 + 1).all()
    solved = eq.fixed_point(lambda z: 0.5 * z + 1, z0, adjoint=adjoint)
    assert (solved.status == CONVERGED).all()


LINEAR = [eq.GMRES, eq.BiCGSTAB, eq.Neumann, eq.DirectSolve, eq.Fallback, eq.Anderson, eq.Broyden]


@pytest.mark.parametrize("rtol", [1e-1, 1e-2, 1e-4])
@pytest.mark.parametrize("linear", LINEAR)
def test_linear_systems_without_a_solution(linear, rtol: float) -> None:
    """An eigenvalue 1, and one so near that rounding decides: no u is passed off as solved."""
    q = orthogonal(D, seed=11).float()
    x = torch.zeros(4, D, requires_grad=True)
    # More than half of g is out of reach: no tolerance is as loose.
    g = normal(4, D, seed=13).float() + 4 * q[:, 0]
    for gap in (0.0, 1e-8):
        values = torch.linspace(-0.5, 0.5, D, dtype=torch.float64)
        values[0] = 1.0 - gap
        a = (q.double() @ (values[:, None] * q.double().T)).float()
        adjoint = eq.Implicit(linear=linear(rtol=rtol, max_evals=300))
        # Zero solves it: it is the backward that has to be solved.
        f = lambda z, x, a=a: z @ a.T + x  # noqa: E731
        sol = eq.fixed_point(f, torch.zeros(4, D), x, adjoint=adjoint)
        with pytest.warns(eq.SolveWarning):
            sol.value.backward(g)
        assert sol.adjoint is not None and not (sol.adjoint.status == CONVERGED).any()
    assert x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize("linear", LINEAR)
def test_linear_systems_with_a_large_solution(linear) -> None:
    """An eigenvalue .995: the loosest tolerance asks for a residual below .03 ||g|| too."""
    q = orthogonal(D, seed=11)
    values = torch.linspace(-0.5, 0.5, D, dtype=torch.float64)
    values[0] = 0.995
    a = q @ (values[:, None] * q.T)
    x = torch.zeros(4, D, dtype=torch.float64, requires_grad=True)
    adjoint = eq.Implicit(linear=linear(rtol=1e-1, max_evals=2000))
    sol = from_zero(lambda z, x: z @ a.T + x, x, adjoint=adjoint)
    g = normal(4, D, seed=13)
    sol.value.backward(g)
    assert sol.adjoint is not None and (sol.adjoint.status == CONVERGED).all()
    assert x.grad is not None
    residual = (x.grad @ a + g - x.grad).norm(dim=1)
    grown = (x.grad @ a + g).norm(dim=1) > GROWTH * g.norm(dim=1)
    assert grown.any() and (residual[grown] <= 1.01 * SHARE * g.norm(dim=1)[grown]).all()
