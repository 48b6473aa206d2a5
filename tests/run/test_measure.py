"""What a contestant says is not believed: what it returns is measured."""

import math

import pytest
import torch

from equilibria.run.bench import solvers
from equilibria.run.bench.contestants import Answer, BenchedSolver, contestants
from equilibria.run.bench.count import Calls, Spent, count
from equilibria.run.bench.problems import BenchProblem

RTOL = 1e-6
B = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(4, 5)
PROBLEM = BenchProblem(
    name="linear-half",
    f=lambda z, b: 0.5 * z + b,
    z0=torch.zeros_like(B),
    operands=(B,),
    max_evals=60,
)


def iterate(problem, f, rtol, evals):
    z = problem.z0
    for _ in range(evals):
        image = f(z, *problem.operands)
        if bool(((image - z).norm(dim=1) <= rtol * image.norm(dim=1)).all()):
            break
        z = image
    return Answer(z, torch.full((len(z),), 7), torch.zeros(len(z)))


def liar(problem, f, rtol, evals):
    f(problem.z0, *problem.operands)
    return Answer(problem.z0 + 1, torch.ones(4), torch.zeros(4))


def half_a_liar(problem, f, rtol, evals):
    answer = iterate(problem, f, rtol, evals)
    value = answer.value.clone()
    value[1] += 1e-3
    return Answer(value, None, torch.tensor([0, 0, 1, 0]))


def nan(problem, f, rtol, evals):
    f(problem.z0, *problem.operands)
    return Answer(torch.full_like(problem.z0, float("nan")))


def crash(problem, f, rtol, evals):
    f(problem.z0, *problem.operands)
    raise ZeroDivisionError("of\nits own")


def greedy(problem, f, rtol, evals):
    while True:
        f(problem.z0, *problem.operands)


def of(name, solve, **options):
    return BenchedSolver(name=name, family="test", method=name, solve=solve, **options)


def measured(*who, problem=PROBLEM, rtol=RTOL, rounds=1):
    """The row of each contestant by its name."""
    rows = solvers.measure(problem, who, rtol=rtol, rounds=rounds)
    return {row["solver"]: row for row in rows}


@pytest.fixture(scope="module")
def rows():
    honest = [of("honest", iterate), of("other", iterate)]
    others = [of(s.__name__, s) for s in (liar, half_a_liar, nan, crash, greedy)]
    return measured(*honest, *others, rounds=2)


def test_an_honest_answer_is_timed(rows):
    honest = rows["honest"]
    assert honest["reached"] == 4 and honest["wrong"] == 0 and honest["ms"] > 0
    assert honest["residual"] <= solvers.SLACK * RTOL
    assert (honest["evals"], honest["evals_max"]) == (7, 7)  # what it says of each sample
    assert honest["calls"] == 20 and honest["f_samples"] == 4 * 20  # what is seen: 2^-20 < 1e-6
    assert honest["bytes"] >= PROBLEM.z0.numel() * 8


def test_the_first_row_tells_of_the_problem(rows):
    first, *others = rows.values()
    assert first["kind"] == "linear" and first["rounds"] == 2 and first["f_ms"] > 0
    assert (first["entries"], first["state_bytes"]) == (5, 4 * 5 * 8)
    assert not any("f_ms" in row for row in others)


@pytest.mark.parametrize(
    ("name", "reached", "wrong"), [("liar", 0, 4), ("half_a_liar", 3, 1), ("nan", 0, 0)]
)
def test_an_answer_that_misses_the_tolerance_is_marked_and_not_timed(rows, name, reached, wrong):
    row = rows[name]
    assert (row["reached"], row["wrong"], row["samples"]) == (reached, wrong, 4)
    assert not {"error", "ms", "ops", "bytes"} & set(row)


def test_a_residual_that_is_no_number_is_infinite(rows):
    assert rows["nan"]["residual"] == math.inf


def test_one_that_fails_is_named_and_harms_nobody(rows):
    assert rows["crash"]["error"] == "ZeroDivisionError: of its own"
    assert rows["greedy"]["error"] == "more than 65 evaluations of f"
    assert rows["greedy"]["calls"] == 65
    assert rows["crash"]["reached"] == 0 and "ms" not in rows["crash"]


def test_without_rounds_all_is_counted_and_nothing_timed():
    honest = measured(of("honest", iterate), rounds=0)["honest"]
    # subtraction, norm, norm, product, comparison, all
    assert honest["ops"] == 6 and honest["reads"] == 20
    assert honest["ops_mean"] == (19 * 6 + honest["ops_outside"]) / 20
    assert "ms" not in honest and honest["f_ms"] is None


def asked_of(**options):
    """Budgets that a contestant was given, one after the other, and its row."""
    asked = []

    def solve(problem, f, rtol, evals):
        asked.append(evals)
        return iterate(problem, f, rtol, evals)

    return asked, measured(of("one", solve, **options))["one"]


def test_who_pays_for_its_budget_is_given_what_it_needs():
    asked, _ = asked_of(pays_for_budget=True)
    assert asked[0] == 60
    assert set(asked[1:]) == {22}  # 20 calls, and two to spare


def test_who_keeps_every_step_is_given_at_most_so_many_evaluations():
    asked, row = asked_of(max_evals=10)
    assert set(asked) == {10}
    assert row["reached"] == 0
    broyden = [each.max_evals for each in contestants() if each.method == "Broyden"]
    assert broyden and set(broyden) == {400}


@pytest.mark.parametrize("each", contestants(), ids=lambda each: each.name)
def test_every_contestant_solves_an_easy_problem(each):
    row = measured(each, rtol=1e-5)[each.name]
    assert "error" not in row
    assert row["reached"] == 4 and row["wrong"] == 0
    assert 1 <= row["calls"] <= 60 and row["ms"] > 0
    assert ("ops" not in row) == (each.family == "scipy")


def test_finished_samples_leave_where_the_problem_allows_it():
    r = torch.tensor([[0.1], [0.1], [0.1], [0.9]], dtype=torch.float64)
    problem = BenchProblem(
        name="hard-one",
        f=lambda z, b, r: r * z + b,
        z0=torch.zeros_like(B),
        operands=(B, r),
        max_evals=300,
        drop_finished=True,
    )
    picard = next(each for each in contestants() if each.name == "Picard")
    row = measured(picard, problem=problem, rounds=0)["Picard"]
    assert row["reached"] == 4
    assert row["f_samples"] < 2 * row["calls"] < 4 * row["calls"]


# --- the counter of operations and host reads, on operations whose number is known ----------------


X = torch.arange(12.0).reshape(3, 4)

# What is done between two evaluations, the operations that compute or copy, the host reads.
KNOWN = [
    ("nothing", lambda z: z, 0, 0),
    ("views", lambda z: z.view(4, 3).t()[1:].unsqueeze(0).reshape(-1).expand(2, -1), 1, 0),
    ("views alone", lambda z: z.view(4, 3)[1:].unsqueeze(0).expand(2, -1, -1).detach(), 0, 0),
    ("room", lambda z: torch.empty_like(z), 0, 0),
    ("zeros", lambda z: torch.zeros(3), 1, 0),
    ("one sum", lambda z: z + z, 1, 0),
    ("two", lambda z: (z * 2).add_(1), 2, 0),
    ("a copy", lambda z: z.clone(), 1, 0),
    ("a copy for a view", lambda z: z.t().reshape(-1), 1, 0),
    ("an assignment", lambda z: torch.empty_like(z).copy_(z), 1, 0),
    ("item", lambda z: z.sum().item(), 1, 1),
    ("bool", lambda z: bool((z >= 0).all()), 2, 1),
    ("float", lambda z: float(z[0, 0]), 0, 1),
    ("equal", lambda z: torch.equal(z, z), 1, 1),
    ("tolist", lambda z: z.tolist(), 0, 1),
    ("numpy", lambda z: z.numpy(), 0, 1),
    ("a norm", lambda z: torch.linalg.vector_norm(z, dim=1), 1, 0),
    ("a product of matrices", lambda z: z @ z.t(), 1, 0),
]


@pytest.mark.parametrize(("act", "ops", "reads"), [k[1:] for k in KNOWN], ids=[k[0] for k in KNOWN])
def test_known_operations(act, ops, reads):
    def solve(f):
        f(X)
        act(X)
        f(X)

    counts = count(solve, lambda z: z.exp())
    assert (counts.between, counts.outside, counts.reads) == ([ops], 0, reads)
    assert counts.per_evaluation == ops


def test_f_itself_is_not_counted_and_the_median_is_taken():
    def f(z):
        return torch.tanh(z @ z.t() + 1).sum().expand(2).clone() + float(z[0, 0])

    def solve(f):
        z = X * 2  # before: 1
        f(z)
        z = z + 1
        f(z)
        for _ in range(5):
            z = z + 1
        f(z)
        z = z + 1
        f(z)
        return -z.abs()  # after: 2

    counts = count(solve, f)
    assert counts.between == [1, 5, 1]
    assert counts.per_evaluation == 1
    assert (counts.outside, counts.reads) == (3, 0)


def test_f_within_f_counts_once():
    counts = count(lambda f: f(f(X)), lambda z: z * 2)
    assert counts.between == [0]

    def solve(f):
        return f(X)

    assert count(solve, lambda z: z * 2).per_evaluation is None


def test_a_mask_that_picks_entries_is_a_read():
    def solve(f):
        f(X)
        X[X > 3]
        f(X)

    assert count(solve, lambda z: z).reads == 1


def test_calls_are_counted_with_their_samples_and_limited():
    calls = Calls(lambda z, y: z + y, limit=3)
    for samples in (3, 2, 2):
        calls(X[:samples], X[:samples])
    assert (calls.calls, calls.samples) == (3, 7)
    with pytest.raises(Spent, match="more than 3 evaluations"):
        calls(X, X)
    assert calls.calls == 3
