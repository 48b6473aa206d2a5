"""How a solve ends: each status for its own reason, and what is returned then."""

import pytest
import torch
from problems import column, normal

import equilibria as eq

CONVERGED, MAX_EVALS, STALLED, DIVERGED, NONFINITE = eq.Status


def test_statuses_are_numbers_and_sentences() -> None:
    assert [int(status) for status in eq.Status] == [0, 1, 2, 3, 4]
    assert all(len(status.message.split()) >= 3 for status in eq.Status)
    sol = eq.fixed_point(torch.cos, torch.zeros(3, 2))
    assert sol.status.dtype == torch.int8 and sol.status.shape == (3,)
    assert sol.stats.evals.dtype == torch.int64 and sol.stats.evals.shape == (3,)
    assert sol.stats.residual.shape == (3,)
    assert sol.adjoint is None and sol.stats.trace is None


def test_diverged_is_growth_by_1e10() -> None:
    """||f(z) - z|| of z -> r z from 1 is (r - 1) r^(k - 1) at the k-th evaluation, ||f(1)|| is r:
    DIVERGED at the first k with (r - 1) r^(k - 2) > 1e10."""
    sol = eq.fixed_point(
        lambda z, r: r * z,
        torch.ones(2, 1, dtype=torch.float64),
        column(10.0, 1000.0),
        solver=eq.Picard(),
    )
    assert sol.status.tolist() == [DIVERGED, DIVERGED]
    assert sol.stats.evals.tolist() == [12, 5]


def test_diverged_where_it_stalled_after_growth_by_1e8() -> None:
    """3^20 is 3e9, and the start is the best of all: it has not stalled, it has run away."""
    z0 = torch.zeros(1, 1, dtype=torch.float64)
    sol = eq.fixed_point(lambda z: 1 - 3 * z, z0, solver=eq.Picard())
    assert sol.status.tolist() == [DIVERGED] and sol.stats.evals.tolist() == [21]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_start_beside_an_unstable_fixed_point_may_leave_it(dtype) -> None:
    """The residual grows by 5e9 from 1e-10, and then falls: not DIVERGED.

    CONVERGED where f is told from z to 3e-12; in float32, of which the start is a hundredth of the
    rounding, nothing can say that it has fallen.
    """
    z0 = torch.zeros(2, 3, dtype=dtype)
    for solver in (eq.Picard(max_evals=200), eq.Anderson(max_evals=200)):
        sol = eq.fixed_point(lambda z: torch.tanh(3 * z + 1e-10), z0, solver=solver)
        wanted = CONVERGED if dtype == torch.float64 else STALLED
        if isinstance(solver, eq.Picard):  # Anderson finds the unstable one, at -5e-11
            assert (sol.status == wanted).all()
            torch.testing.assert_close(sol.value, torch.full_like(z0, 0.99505), rtol=1e-3, atol=0)


def test_patience_counts_newton_steps_as_one() -> None:
    """Each takes products, which count as evaluations; patience is told of the iterates alone."""
    q = torch.linalg.qr(normal(12, 12, seed=2))[0]
    solver = eq.NewtonKrylov(patience=4, max_evals=400)
    f = lambda z: torch.where(z > 0, -1.0, 1.0).to(z) @ q * 2  # noqa: E731
    sol = eq.fixed_point(f, torch.ones(1, 12, dtype=torch.float64), solver=solver)
    assert sol.status.tolist() == [STALLED] and int(sol.stats.evals) > 2 * 4 + 1


def test_nonfinite_returns_the_best_finite_iterate() -> None:
    """1, then 2, then f says inf: both iterates have been evaluated, the first is better."""

    def f(z):
        return torch.where(z < 2, 2 * z, torch.where(z < 5, 10 * z, torch.inf))

    sol = eq.fixed_point(f, torch.ones(1, 1), solver=eq.Picard())
    assert sol.status.tolist() == [NONFINITE]
    assert sol.stats.evals.tolist() == [3]
    assert sol.value.item() == 1.0 and sol.stats.residual.item() == 0.5


def test_nonfinite_at_the_first_evaluation_returns_the_start() -> None:
    for bad in (torch.nan, torch.inf, -torch.inf):
        sol = eq.fixed_point(lambda z, bad=bad: z + bad, torch.ones(1, 2), solver=eq.Picard())
        assert sol.status.tolist() == [NONFINITE] and sol.stats.evals.tolist() == [1]
        assert torch.equal(sol.value, torch.ones(1, 2))
        assert not sol.stats.residual.isfinite()


def test_nan_in_one_entry_or_one_leaf_is_nonfinite() -> None:
    def f(z):
        bad = z["b"].clone()
        bad[..., 3] = torch.nan
        return {"a": 0.5 * z["a"], "b": bad}

    sol = eq.fixed_point(f, {"a": torch.ones(1, 2), "b": torch.ones(1, 5)})
    assert sol.status.tolist() == [NONFINITE]


@pytest.mark.parametrize("patience", [5, 20])
def test_stalled_after_patience_evaluations(patience: int) -> None:
    """A cycle of two, whose first point is the better one: nothing falls in `patience` more."""
    z0 = torch.full((2, 3), 0.25)
    sol = eq.fixed_point(lambda z: 1 - z, z0, solver=eq.Picard(patience=patience))
    assert sol.status.tolist() == [STALLED, STALLED]
    assert sol.stats.evals.tolist() == [patience + 1] * 2


def test_stall_needs_less_than_one_percent_in_patience_evaluations() -> None:
    """Falling by .1 % an evaluation is 1 % in 11: no stall at patience 20, one at patience 5."""
    f = lambda z: 0.999 * z + 1000  # noqa: E731

    def status(patience: int) -> int:
        solver = eq.Picard(patience=patience, max_evals=60)
        z0 = torch.full((1, 1), 2e6, dtype=torch.float64)
        return int(eq.fixed_point(f, z0, solver=solver).status)

    assert status(20) == MAX_EVALS and status(5) == STALLED


def test_reduced_precision_ends_in_a_stall() -> None:
    """f in bfloat16 leaves a floor near 2.5e-3 on the relative residual."""
    w = 0.2 * normal(16, 16, seed=1).float()

    def f(z):
        return torch.tanh(z.bfloat16() @ w.bfloat16() + 0.5).to(z.dtype)

    sol = eq.fixed_point(f, torch.zeros(4, 16), solver=eq.Anderson(rtol=1e-6, max_evals=500))
    assert set(sol.status.tolist()) <= {CONVERGED, STALLED}
    assert (sol.status == STALLED).any()
    assert (sol.stats.residual < 2e-2).all() and (sol.stats.evals < 100).all()


def test_an_answer_that_is_zero() -> None:
    """The relative residual of z -> z / 2 is 1 everywhere: it counts once z is zero to rounding."""
    z0 = torch.ones(2, 3)
    relative = eq.fixed_point(lambda z: z / 2, z0, solver=eq.Picard())
    absolute = eq.fixed_point(lambda z: z / 2, z0, solver=eq.Picard(atol=1e-3))
    assert relative.status.tolist() == [CONVERGED, CONVERGED]
    assert relative.stats.residual.tolist() == [0, 0]
    # 2^-k below eps^1.5 = 2^-34.5.
    assert relative.stats.evals.tolist() == [36, 36]
    # ||f(z) - z|| = 2^-(k+1) in the RMS norm, whatever the number of entries: below 1e-3 at k = 9.
    assert absolute.status.tolist() == [CONVERGED, CONVERGED]
    assert absolute.stats.evals.tolist() == [10, 10]


def test_starting_at_zero_where_zero_is_the_answer_converges() -> None:
    sol = eq.fixed_point(lambda z: z / 2, torch.zeros(2, 3))
    assert sol.status.tolist() == [CONVERGED, CONVERGED]
    assert sol.stats.residual.tolist() == [0, 0]


def test_the_norm_is_over_all_leaves_together() -> None:
    """A small leaf that is far off is forgiven beside a large one, as DESIGN's norm says."""

    def f(z):
        return {"large": z["large"] * 0 + 100.0, "small": -z["small"]}

    z0 = {"large": torch.full((1, 99), 100.0), "small": torch.full((1, 1), 1e-3)}
    sol = eq.fixed_point(f, z0)
    assert sol.status.tolist() == [CONVERGED] and sol.stats.evals.tolist() == [1]
    wanted = 2e-3 / (99 * 100.0**2 + 1e-6) ** 0.5
    assert sol.stats.residual.item() == pytest.approx(wanted, rel=1e-4)
