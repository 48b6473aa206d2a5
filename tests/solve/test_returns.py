"""Which iterate a solve returns where it does not converge: `returns`."""

from collections import defaultdict

import pytest
import torch
from problems import normal, relative_residual
from references import from_zero

import equilibria as eq
from equilibria.solve import loop, private

SOLVERS = [
    eq.Picard(rtol=1e-6, max_evals=30),
    eq.Picard(rtol=1e-6, damping=0.7, patience=7),
    eq.Anderson(rtol=1e-6, max_evals=20),
    eq.Anderson(period=3, rtol=1e-6, max_evals=20),
    eq.Broyden(rtol=1e-6, max_evals=15),
    eq.Broyden(rtol=1e-6, max_evals=15, memory=3),
    eq.Auto(rtol=1e-6, max_evals=20),
    eq.NewtonKrylov(rtol=1e-6, max_evals=25),
]
# Of elementwise maps: some converge, at different times; some do not within the budget, some
# swing ever further out, and one of them turns NaN on its way.
RATES = torch.tensor([0.05, -1.3, 0.4, 0.97, 60.0, 0.2, -7.0, -1.1], dtype=torch.float64)
X = normal(8, 6, seed=3)


def f(z, rate, x):
    image = rate[:, None] * torch.sin(3 * z.roll(1, dims=1)) + x
    return torch.where((rate[:, None] == -7) & (z.abs() > 3), torch.nan, image)


def solve(solver, returns, **options):
    return eq.fixed_point(
        f, torch.zeros_like(X), RATES, X, solver=solver, returns=returns, **options
    )


@pytest.mark.parametrize("drop_finished", [False, True])
@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_the_last_iterate_of_a_sample_that_does_not_converge(
    solver, deferred: bool, drop_finished: bool, monkeypatch
) -> None:
    if deferred:
        monkeypatch.setattr(private, "free_to_read", lambda tensor: False)
    seen = defaultdict(list)

    def watched(z, rate, x):
        for each, row in zip(rate.tolist(), z, strict=True):
            seen[each].append(row.clone())
        return f(z, rate, x)

    best = solve(solver, "best", drop_finished=drop_finished)
    last = eq.fixed_point(
        watched,
        torch.zeros_like(X),
        RATES,
        X,
        solver=solver,
        returns="last",
        drop_finished=drop_finished,
    )
    assert torch.equal(best.status, last.status) and torch.equal(best.stats.evals, last.stats.evals)
    assert last.value.isfinite().all()
    same = (last.status == eq.Status.CONVERGED) | (last.status == eq.Status.NONFINITE)
    assert 2 <= same.sum() <= 6
    torch.testing.assert_close(last.value[same], best.value[same], rtol=1e-12, atol=1e-12)
    measured = relative_residual(f, last.value, RATES, X)
    torch.testing.assert_close(last.stats.residual, measured, rtol=1e-5, atol=1e-12)
    assert (last.stats.residual >= best.stats.residual * (1 - 1e-9)).all()
    assert (last.stats.residual > 1.1 * best.stats.residual)[~same].any()
    for i in (~same).nonzero().flatten().tolist():
        if not isinstance(solver, eq.NewtonKrylov | eq.Auto):  # they evaluate f in between
            assert torch.equal(last.value[i], seen[float(RATES[i])][last.stats.evals[i] - 1])


def test_blocks_are_judged_together_for_the_last_iterate_too(monkeypatch) -> None:
    blocks = []
    plain = loop.Deferred._is_uneventful
    watched = lambda this, pending: blocks.append(len(pending)) or plain(this, pending)  # noqa: E731
    monkeypatch.setattr(loop.Deferred, "_is_uneventful", watched)
    monkeypatch.setattr(private, "free_to_read", lambda tensor: False)
    x = normal(3, 4, seed=1)
    eq.fixed_point(
        lambda z: 0.99 * z + x, torch.zeros_like(x), solver=eq.Picard(rtol=1e-9), returns="last"
    )
    assert max(blocks) > 1


def test_a_signal_that_travels_is_further_along() -> None:
    """A front passes through the state: small where it begins, and larger further on."""
    gain = torch.tensor([0.1] + 18 * [2.0], dtype=torch.float64)
    front = lambda z: torch.cat([torch.ones_like(z[:, :1]), gain * z[:, :-1]], dim=1)  # noqa: E731
    z0 = torch.zeros(1, 20, dtype=torch.float64)
    options = {"solver": eq.Picard(max_evals=15)}
    best, last = (eq.fixed_point(front, z0, returns=r, **options) for r in ("best", "last"))
    assert best.status == last.status != eq.Status.CONVERGED
    assert (last.value != 0).sum() == 14 > (best.value != 0).sum()


def test_rows_that_are_coupled() -> None:
    index = torch.tensor([0, 0, 1, 1, 1])
    swing = lambda z: 1 - torch.tensor([[1.2]] * 2 + [[0.1]] * 3).double() * z  # noqa: E731
    z0 = torch.full((5, 2), 0.5, dtype=torch.float64)
    options = {"solver": eq.Picard(max_evals=9), "coupled": index}
    last, best = (eq.fixed_point(swing, z0, returns=r, **options) for r in ("last", "best"))
    z = z0
    for _ in range(8):
        z = swing(z)
    torch.testing.assert_close(last.value[:2], z[:2], rtol=1e-12, atol=0)
    assert torch.equal(last.value[2:], best.value[2:])
    torch.testing.assert_close(best.value[:2], swing(z0)[:2], rtol=1e-12, atol=0)


@pytest.mark.filterwarnings("ignore::equilibria.SolveWarning")
@pytest.mark.parametrize(
    "adjoint", [eq.Implicit(), eq.NeumannPhantom(), eq.JacobianFree()], ids=repr
)
def test_the_gradient_is_taken_at_the_value(adjoint) -> None:
    """As by a solve that begins there and evaluates once."""
    x = X.clone().requires_grad_()
    g = lambda z, x: torch.sin(1.8 * z.roll(1, dims=1)) + torch.cos(z * x)  # noqa: E731
    options = {"adjoint": adjoint, "returns": "last"}
    last = eq.fixed_point(g, torch.zeros_like(X), x, solver=eq.Picard(max_evals=7), **options)
    assert (last.status != eq.Status.CONVERGED).all()
    once = eq.fixed_point(g, last.value.detach(), x, solver=eq.Picard(max_evals=1), **options)
    found, wanted = (torch.autograd.grad(sol.value.sum(), x)[0] for sol in (last, once))
    torch.testing.assert_close(found, wanted)


def test_phantom_steps_from_the_last_iterate() -> None:
    z0, turn = torch.full((1, 1), 0.5, dtype=torch.float64), lambda z: 1 - 1.5 * z
    options = {"solver": eq.Picard(max_evals=4), "adjoint": eq.Phantom(steps=1, damping=0.5)}
    last = eq.fixed_point(turn, z0, returns="last", **options).value
    z = turn(turn(turn(z0)))
    torch.testing.assert_close(last, 0.5 * z + 0.5 * turn(z), rtol=1e-12, atol=0)


def test_states_after_the_end_are_the_value() -> None:
    solver = eq.Picard(rtol=1e-6, patience=5)
    sol = solve(solver, "last", states=(60, 99))
    ended = sol.stats.evals < 60
    assert (ended & (sol.status != eq.Status.CONVERGED)).any()
    assert torch.equal(sol.states[0][ended], sol.value[ended])


def test_under_vmap() -> None:
    def one(x):
        turn = lambda z, x: x - 1.3 * torch.sin(z)  # noqa: E731
        return eq.fixed_point(turn, 0 * x, x, solver=eq.Picard(max_evals=9), returns="last").value

    x = normal(3, 2, 4, seed=1)
    torch.testing.assert_close(torch.vmap(one)(x), torch.stack([one(each) for each in x]))


def test_a_layer_is_built_with_it() -> None:
    turn = lambda z, x: x - 1.5 * z  # noqa: E731
    x = torch.ones(2, 3, dtype=torch.float64)
    options = {"solver": eq.Picard(max_evals=4)}
    layer = eq.DEQ(turn, returns="last", **options)
    wanted = from_zero(turn, x, returns="last", **options)
    assert torch.equal(layer(x).value, wanted.value)
    assert not torch.equal(eq.DEQ(turn, **options)(x).value, wanted.value)
    assert "returns='last'" in repr(layer) and "returns" not in repr(eq.DEQ(turn))


@pytest.mark.parametrize("given", ["final", None, "BEST"])
def test_another_word_is_refused(given) -> None:
    for build in (eq.DEQ, lambda f, **how: eq.fixed_point(f, X, **how)):
        with pytest.raises(ValueError, match=r'returns: expected "best" or "last"'):
            build(lambda z: z / 2, returns=given)
