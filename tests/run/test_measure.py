"""What a contestant says is not believed: what it returns is measured."""

import math

import pytest
import torch

from equilibria.run.bench import solvers
from equilibria.run.bench.contestants import Answer, BenchedSolver, contestants
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
