"""Several evaluations judged together end as each judged by itself does."""

import pytest
import torch
from problems import normal
from promise import assert_as_promised
from references import Counted, from_zero

import equilibria as eq
from equilibria.solve import fused, loop, private

SOLVERS = [
    eq.Picard(rtol=1e-5, max_evals=90),
    eq.Picard(rtol=1e-5, atol=1e-3, damping=0.7),
    eq.Anderson(rtol=1e-6),
    eq.Anderson(rtol=1e-6, period=1),
    eq.Broyden(rtol=1e-6),
]
# Rates of elementwise maps: fast, slow, too slow for the budget, oscillating, diverging, and one
# that turns NaN on the way.
RATES = torch.tensor([0.05, 0.5, 0.9, 0.9999, -0.95, 30.0, -7.0])


def f(z, rate, x):
    broken = (rate[:, None] == -7) & (z.abs() > 0.5)
    return torch.where(broken, torch.nan, rate[:, None] * torch.sin(z) + x)


def solve(solver, **options):
    rate = RATES[torch.arange(40) % len(RATES)]
    x = normal(40, 6, seed=3).float()
    return eq.fixed_point(f, torch.zeros_like(x), rate, x, solver=solver, **options)


@pytest.fixture(autouse=True)
def by_torch(monkeypatch) -> None:
    """Both by torch's operations: the operators round otherwise, which 1e-6 in float32 shows."""
    monkeypatch.setattr(fused, "operators", lambda: None)


@pytest.fixture
def blocks(monkeypatch) -> list[int]:
    """Blocks that were asked of the device, each as the number of evaluations in it."""
    asked, plain = [], loop.Deferred._is_uneventful

    def counted(this, pending):
        asked.append(len(pending))
        return plain(this, pending)

    monkeypatch.setattr(loop.Deferred, "_is_uneventful", counted)
    return asked


@pytest.fixture
def unread(monkeypatch) -> None:
    """As on a device, of which no number is read for free."""
    monkeypatch.setattr(private, "free_to_read", lambda tensor: False)


@pytest.mark.parametrize("drop_finished", [False, True])
@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_blocks_change_nothing(solver, drop_finished: bool, monkeypatch, blocks) -> None:
    wanted = solve(solver, drop_finished=drop_finished)
    assert len(set(wanted.status.tolist())) >= 2
    monkeypatch.setattr(private, "free_to_read", lambda tensor: False)
    found = solve(solver, drop_finished=drop_finished)
    assert blocks
    exact = isinstance(solver, eq.Picard)
    for i in range(40):
        rate = float(RATES[i % len(RATES)].abs())
        if exact or rate < 1:
            options = {"rtol": solver.rtol, "lipschitz": min(rate, 0.9999), "exact": exact}
            assert_as_promised(found, i, wanted, i, **options)
    assert found.value.isfinite().all()


@pytest.mark.parametrize("solver", [eq.Picard(), eq.Anderson(), eq.Broyden()], ids=repr)
def test_a_map_that_arrives_at_once_is_evaluated_no_more(solver, unread) -> None:
    constant = Counted(lambda z, x: 0 * z + x)
    x = normal(3, 6, seed=7)
    sol = from_zero(constant, x, solver=solver)
    assert sol.stats.evals.tolist() == [2, 2, 2] and constant.calls == 2


@pytest.mark.parametrize("most", [5, 6, 7, 8, 9])
def test_no_block_exceeds_the_budget(most: int, unread) -> None:
    slow = Counted(lambda z, x: 0.999 * z + x)
    x = normal(3, 6, seed=7)
    sol = from_zero(slow, x, solver=eq.Picard(max_evals=most))
    assert sol.stats.evals.tolist() == 3 * [most] and slow.calls == most


def test_an_inverse_learns_nothing_after_a_samples_last_evaluation(monkeypatch) -> None:
    rate = torch.linspace(0.1, 0.9, 12)
    x = normal(12, 6, seed=6).float().requires_grad_()

    def gradient():
        sol = from_zero(
            lambda z, x: rate[:, None] * torch.sin(z.roll(1, dims=1)) + x,
            x,
            solver=eq.Broyden(rtol=1e-4),
            adjoint=eq.Shine(),
        )
        return torch.autograd.grad(sol.value.square().sum(), x)[0]

    wanted = gradient()
    monkeypatch.setattr(private, "free_to_read", lambda tensor: False)
    torch.testing.assert_close(gradient(), wanted, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("solver", [eq.Anderson(rtol=1e-6, period=1), eq.Broyden(rtol=1e-6)])
def test_small_units_are_judged_by_their_own_residuals(solver, unread) -> None:
    """A block that is gone through again must not take a later residual for an earlier one."""
    rate = torch.linspace(0.6, 0.95, 40)
    x = 2.0**-50 * normal(40, 6, seed=5).float()
    g = lambda z, rate, x: rate[:, None] * z.roll(1, dims=1) + x  # noqa: E731
    sol = eq.fixed_point(g, torch.zeros_like(x), rate, x, solver=solver)
    image, value = g(sol.value, rate, x).double(), sol.value.double()
    residual = (image - value).norm(dim=1) / image.norm(dim=1)
    done = sol.status == eq.Status.CONVERGED
    assert done.any()
    assert (residual[done] <= 1.01e-6).all()


def test_the_device_is_asked_every_few_evaluations(blocks, unread) -> None:
    """While all samples are far from their tolerance."""
    x = normal(5, 6, seed=4).float()
    g = lambda z, x: 0.95 * torch.sin(0.5 * z) + x  # noqa: E731
    sol = from_zero(g, x, solver=eq.Picard(rtol=1e-6, patience=None))
    assert (sol.status == eq.Status.CONVERGED).all()
    assert loop.BLOCK in blocks
    assert len(blocks) < 0.8 * int(sol.stats.evals.max())


def test_a_sample_that_has_finished_is_no_event(blocks, unread) -> None:
    """The device is asked as seldom as if the sample were not there."""
    rate, x = torch.tensor([[0.0], [0.95]]), normal(2, 6, seed=4).float()
    g = lambda z, rate, x: rate * torch.sin(0.5 * z) + x  # noqa: E731
    counts = []
    for here in (slice(0, 2), slice(1, 2)):
        blocks.clear()
        solver = eq.Picard(rtol=1e-6, patience=None)
        start = torch.zeros_like(x[here])
        sol = eq.fixed_point(g, start, rate[here], x[here], solver=solver)
        assert (sol.status == eq.Status.CONVERGED).all()
        counts.append(len(blocks))
    assert counts[0] <= counts[1] + 2


def test_a_finished_sample_at_zero_has_the_residual_zero(unread) -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)
    solver = eq.Picard(rtol=1e-6, atol=1e-5)
    sol = eq.fixed_point(lambda z: 0.95 * torch.sin(z) + x, torch.zeros_like(x), solver=solver)
    assert (sol.status == eq.Status.CONVERGED).all() and sol.stats.residual[0] == 0
