"""Solves by the operators of equilibria-kernels end as those by torch's own operations do."""

import pytest
import torch
from problems import normal
from references import Counted
from torch.utils import _pytree as pytree

import equilibria as eq
from equilibria.solve import fused, loop
from equilibria.solve.glance import Glance

pytestmark = pytest.mark.skipif(
    fused.operators() is None, reason="equilibria-kernels is not installed (kernels/README.md)"
)

# What follows from f alone is equal to the last bit; the mixing of iterates rounds otherwise.
PLAIN = [
    eq.Picard(),
    eq.Picard(damping=0.7, rtol=1e-5, atol=1e-4),
    eq.Picard(rtol=1e-6, max_evals=17),
    eq.Picard(rtol=1e-9, patience=5),
    eq.Picard(error=1e-2),
]
MIXED = [
    eq.Auto(),
    eq.Auto(rtol=1e-6, atol=1e-5),
    eq.Auto(newton=eq.GMRES()),
    eq.Anderson(),
    eq.Anderson(history=12, rtol=1e-6),
    eq.Anderson(damping=0.8, ridge=1e-8),
    eq.Anderson(period=3, history=9),
    eq.Broyden(),
]
SAMPLES, WIDTH = 12, 40
# Rates of samples: quick and slow ones, one that cycles, and one that ends up far away.
RATES = torch.tensor([0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.97, -1.0, 3.0])


def weight(dtype: torch.dtype) -> torch.Tensor:
    return torch.linalg.qr(normal(WIDTH, WIDTH, seed=1))[0].to(dtype)


def cell(dtype: torch.dtype, broken: bool = False) -> Counted:
    w = weight(dtype)

    def f(z, rate, x):
        out = rate[:, None] * torch.tanh(z @ w) + x
        lost = (rate == 0.6) & (z.abs().amax(1) > 0)
        return torch.where(lost[:, None], torch.nan, out) if broken else out

    return Counted(f)


def solve(solver, dtype=torch.float64, broken=False, **options):
    """The solution, and how often f was evaluated."""
    f = cell(dtype, broken)
    x = 2 * normal(SAMPLES, WIDTH, seed=2).to(dtype)
    with torch.no_grad():
        found = eq.fixed_point(f, torch.zeros_like(x), RATES.to(dtype), x, solver=solver, **options)
    return found, f.calls


@pytest.fixture
def both(monkeypatch):
    """Runs a solve by either form, and says how often the operators measured."""

    def run(solve, *args, **options):
        looks = []

        class Counting(Glance):
            def see(self, z, f, due):
                looks.append(due)
                return super().see(z, f, due)

        with monkeypatch.context() as patch:
            patch.setattr(loop, "Glance", Counting)
            found = solve(*args, **options)
        with monkeypatch.context() as patch:
            patch.setattr(fused, "operators", lambda: None)
            wanted = solve(*args, **options)
        return found, wanted, len(looks)

    return run


def assert_same(found, wanted, tolerance: float = 0.0) -> None:
    (a, calls), (b, wanted_calls) = found, wanted
    assert calls == wanted_calls
    assert torch.equal(a.status, b.status)
    assert torch.equal(a.stats.evals, b.stats.evals)
    for name in ("choices", "reason"):
        torch.testing.assert_close(getattr(a.stats, name), getattr(b.stats, name))
    leaves = zip(pytree.tree_leaves(a.value), pytree.tree_leaves(b.value), strict=True)
    # Residuals are summed in double precision, and otherwise in that of the state.
    rounding = 1e-5 if a.stats.residual.dtype == torch.float32 else 1e-12
    pairs = [(a.stats.residual, b.stats.residual, rounding), *((*x, tolerance) for x in leaves)]
    for x, y, allowed in pairs:
        torch.testing.assert_close(
            x, y, rtol=max(allowed, tolerance), atol=tolerance, equal_nan=True
        )
    known = a.stats.error.isfinite()
    assert torch.equal(known, b.stats.error.isfinite())
    torch.testing.assert_close(
        a.stats.error[known], b.stats.error[known], rtol=1e-3, atol=tolerance + 1e-7
    )


@pytest.mark.parametrize("broken", [False, True], ids=["", "broken"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("solver", PLAIN, ids=repr)
def test_plain_iteration_is_the_same(solver, dtype, broken: bool, both) -> None:
    found, wanted, looks = both(solve, solver, dtype, broken=broken)
    assert_same(found, wanted)
    assert len(set(found[0].status.tolist())) > 1
    assert bool(looks) == (solver.error is None)


@pytest.mark.parametrize("broken", [False, True], ids=["", "broken"])
@pytest.mark.parametrize("solver", MIXED, ids=repr)
def test_acceleration_is_the_same_but_for_rounding(solver, broken: bool, both) -> None:
    found, wanted, _ = both(solve, solver, broken=broken)
    assert_same(found, wanted, 1e-8)


@pytest.mark.parametrize("solver", [eq.Picard(), eq.Auto()], ids=repr)
@pytest.mark.parametrize(
    "options",
    [
        {"drop_finished": True},
        {"drop_finished": True, "broken": True},
        {"returns": "last"},
        {"states": (1, 3, 8)},
        {"trace": True},
        {"coupled": True},
        {"coupled": torch.arange(SAMPLES) // 3},
    ],
    ids=str,
)
def test_options_change_nothing(solver, options, both) -> None:
    found, wanted, looks = both(solve, solver, **options)
    assert_same(found, wanted, 1e-8)
    for x, y in zip(found[0].states or (), wanted[0].states or (), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-8)
    assert bool(looks) == ("trace" not in options)


@pytest.mark.parametrize("solver", [eq.Picard(rtol=1e-6), eq.Anderson(), eq.Auto()], ids=repr)
def test_several_leaves(solver, both) -> None:
    w = weight(torch.float64)
    x = normal(SAMPLES, WIDTH, seed=2)

    def solve_pair(solver):
        def f(z, rate, x):
            a, b = z
            up = rate[:, None] * torch.tanh(a @ w + b.flatten(1)) + x
            return up, 0.5 * torch.sin(a).unflatten(1, (4, -1))

        f = Counted(f)
        start = torch.zeros_like(x), torch.zeros_like(x).unflatten(1, (4, -1))
        rate = RATES.double().clamp(max=0.9)
        with torch.no_grad():
            return eq.fixed_point(f, start, rate, x, solver=solver), f.calls

    found, wanted, looks = both(solve_pair, solver)
    assert_same(found, wanted, 1e-9)
    assert looks


@pytest.mark.parametrize("solver", [eq.Picard(), eq.Auto(), eq.Anderson()], ids=repr)
def test_gradients_are_the_same(solver, both) -> None:
    """The adjoint's states may lie in memory in any order: the gradient of a sum is expanded."""
    x = normal(SAMPLES, WIDTH, seed=2).requires_grad_()
    w = weight(torch.float64).requires_grad_()

    def differentiate(solver):
        z = torch.zeros(SAMPLES, WIDTH, dtype=x.dtype)
        sol = eq.fixed_point(lambda z, x: 0.5 * torch.tanh(z @ w) + x, z, x, solver=solver)
        return torch.autograd.grad(sol.value.sum(), [x, w])

    found, wanted, looks = both(differentiate, solver)
    assert looks
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


def test_rows_in_another_order_are_measured_by_torch(both) -> None:
    def transposed(solver):
        f = Counted(lambda z, x: (0.5 * z + x).T.contiguous().T)
        with torch.no_grad():
            x = normal(SAMPLES, WIDTH, seed=2)
            return eq.fixed_point(f, torch.zeros_like(x), x, solver=solver), f.calls

    found, wanted, _ = both(transposed, eq.Picard())
    assert_same(found, wanted)


def test_answers_do_not_move_after_their_samples_have_ended() -> None:
    """A sample that has ended is frozen at its answer, at every evaluation until the others end."""
    seen = []

    def f(z, rate):
        seen.append(z.clone())
        return rate * z + 1

    rate = torch.tensor([[0.1], [0.5], [0.9]]).expand(3, 4).contiguous()
    with torch.no_grad():
        sol = eq.fixed_point(f, torch.zeros(3, 4), rate, solver=eq.Picard(max_evals=200))
    first, last = sol.stats.evals.min(), sol.stats.evals.max()
    assert last > first + 20
    for z in seen[first:]:
        assert torch.equal(z[0], sol.value[0])


def test_the_configuration_names_the_form(monkeypatch, capsys) -> None:
    eq.show_config()
    assert "fused operators" in capsys.readouterr().out
    monkeypatch.setattr(fused, "operators", lambda: None)
    eq.show_config()
    assert "torch operations: equilibria-kernels is not installed" in capsys.readouterr().out
