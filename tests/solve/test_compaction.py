"""One hard sample in a batch: `drop_finished=True` evaluates little more than each needs."""

import pytest
import torch
from problems import normal, spread, with_spectrum
from references import Counted, from_zero

import equilibria as eq

CONVERGED = eq.Status.CONVERGED
BATCH, WIDTH = 32, 24
EASY, HARD = 0.3, 0.97
LIMITS = {"rtol": 1e-4, "max_evals": 1000, "patience": None}

SOLVERS = [
    eq.Picard(**LIMITS),
    eq.Anderson(**LIMITS),
    eq.Anderson(**LIMITS, period=1, history=10),
    eq.Broyden(**LIMITS),
    eq.Broyden(**LIMITS, memory=10),
    eq.NewtonKrylov(**LIMITS),
    eq.Auto(**LIMITS),
]

WEIGHT = with_spectrum(spread(-1, 1, WIDTH), seed=1)
OFFSET = 0.05 * normal(BATCH, WIDTH, seed=2)


def f(z, x, rate):
    """r tanh(z W) + x, a rate r for each sample."""
    return rate * torch.tanh(z @ WEIGHT) + x


def solve(solver, rate, which, **options):
    """Rows of f that the solve took, and the solution of the samples `which`."""
    counted = Counted(f)
    x = OFFSET[which]
    sol = from_zero(counted, x, rate[which], solver=solver, **options)
    return counted.rows, sol


@pytest.mark.parametrize("hard", [1, 8])
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: repr(solver).partition("(")[0])
def test_rows_of_f_against_what_each_sample_needs_alone(solver, hard: int) -> None:
    rate = torch.full((BATCH, 1), EASY, dtype=torch.float64)
    rate[:: BATCH // hard] = HARD
    rows, sol = solve(solver, rate, torch.arange(BATCH), drop_finished=True)
    assert (sol.status == CONVERGED).all()
    alone = [solve(solver, rate, torch.tensor([i]))[0] for i in range(BATCH)]
    assert rows <= 1.2 * sum(alone)
    # It is worth something: riding along, each would take part in every evaluation.
    assert sol.stats.evals.max() > 1.5 * sol.stats.evals.min()
    assert rows < BATCH * max(alone)


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: repr(solver).partition("(")[0])
def test_without_leave_nobody_leaves(solver) -> None:
    """Nothing is guessed from shapes: without `drop_finished` all samples are evaluated."""
    rate = torch.full((BATCH, 1), EASY, dtype=torch.float64)
    rate[0] = HARD
    seen = set()

    def watched(z, x, rate):
        seen.add(z.shape[0])
        return f(z, x, rate)

    from_zero(watched, OFFSET, rate, solver=solver)
    assert seen == {BATCH}


def test_trees_and_all_operands_leave_together() -> None:
    """A state of two leaves, operands in a tree, shared ones: each row keeps what is its own."""
    rate = torch.linspace(0.1, 0.8, BATCH, dtype=torch.float64)

    def g(z, inputs, weight):
        a, b = z
        return (
            torch.tanh(inputs["rate"][:, None] * b.flatten(1)) + inputs["x"],
            (a @ weight).reshape(-1, 4, 6),
        )

    weight = torch.linalg.qr(normal(WIDTH, WIDTH, seed=3)).Q
    inputs = {"rate": rate, "x": OFFSET}
    z0 = (torch.zeros_like(OFFSET), torch.zeros(BATCH, 4, 6, dtype=torch.float64))
    kept, left = (
        eq.fixed_point(
            g,
            z0,
            inputs,
            eq.shared(weight),
            solver=eq.Anderson(rtol=1e-9, max_evals=300),
            drop_finished=drop_finished,
        )
        for drop_finished in (False, True)
    )
    assert torch.equal(kept.status, left.status) and (left.status == CONVERGED).all()
    for a, b in zip(kept.value, left.value, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-8)


def test_what_closes_over_the_batch_is_an_error() -> None:
    """A closed-over tensor with the batch's axis no longer fits once a sample has left."""
    rate = torch.linspace(0.1, 0.97, BATCH, dtype=torch.float64)[:, None]
    with pytest.raises(RuntimeError):
        eq.fixed_point(
            lambda z: rate * torch.sin(z) + OFFSET, torch.zeros_like(OFFSET), drop_finished=True
        )
