"""What a contestant says is not believed: what it returns is measured."""

import json
from typing import Any

import pytest
import torch

from equilibria.bench import solvers
from equilibria.bench.contestants import Answer, Contestant, contestants
from equilibria.bench.problems import Problem
from equilibria.bench.record import finite

RTOL = 1e-6
B = torch.linspace(-1, 1, 20, dtype=torch.float64).reshape(4, 5)
PROBLEM = Problem(
    name="half",
    kind="linear",
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
    return Contestant(name=name, family="test", method=name, solve=solve, **options)


@pytest.fixture(scope="module")
def report():
    honest = [of("honest", iterate), of("other", iterate)]
    others = [of(s.__name__, s) for s in (liar, half_a_liar, nan, crash, greedy)]
    return solvers.measure(PROBLEM, [*honest, *others], rtol=RTOL, turns=2)


def test_an_honest_answer_is_timed(report):
    honest = report.get("honest")
    assert honest.all_reached and honest.wrong == 0 and honest.ms > 0
    assert honest.residual <= solvers.SLACK * RTOL
    assert (honest.evals_mean, honest.evals_max) == (7, 7)  # what it says of each sample
    assert honest.calls == 20 and honest.f_samples == 4 * 20  # what is seen: 2^-20 < 1e-6
    assert honest.bytes >= PROBLEM.z0.numel() * 8
    assert report.f_ms > 0
    assert report.overhead(honest) == pytest.approx(honest.ms / (20 * report.f_ms))


@pytest.mark.parametrize(
    ("name", "reached", "wrong"), [("liar", 0, 4), ("half_a_liar", 3, 1), ("nan", 0, 0)]
)
def test_an_answer_that_misses_the_tolerance_is_marked_and_not_timed(report, name, reached, wrong):
    measured = report.get(name)
    assert (measured.reached, measured.wrong, measured.samples) == (reached, wrong, 4)
    assert not measured.all_reached and measured.error is None
    assert measured.ms is None and report.overhead(measured) is None


def test_one_that_fails_is_named_and_harms_nobody(report):
    assert report.get("crash").error == "ZeroDivisionError: of its own"
    assert "more than 65 evaluations" in report.get("greedy").error
    assert report.get("greedy").calls == 65
    assert not report.get("crash").all_reached and report.get("crash").ms is None


def test_a_report_survives_its_file(report):
    again = solvers.Report.of(json.loads(json.dumps(finite(report.json()))))
    assert again.get("honest") == report.get("honest")
    assert again.get("nan").residual is None  # infinity is no number in JSON
    assert (again.problem, again.f_ms) == (report.problem, report.f_ms)


def test_without_turns_all_is_counted_and_nothing_timed():
    report = solvers.measure(PROBLEM, [of("honest", iterate)], rtol=RTOL, turns=0)
    honest = report.get("honest")
    # subtraction, norm, norm, product, comparison, all
    assert honest.ops == 6 and honest.reads == 20
    assert honest.ops_mean == (19 * 6 + honest.ops_outside) / 20
    assert honest.ms is None and report.f_ms is None


def test_who_pays_for_its_budget_is_given_what_it_needs():
    asked = []

    def solve(problem, f, rtol, evals):
        asked.append(evals)
        return iterate(problem, f, rtol, evals)

    solvers.measure(PROBLEM, [of("ahead", solve, pays_for_budget=True)], rtol=RTOL, turns=1)
    assert asked[0] == 60
    assert set(asked[1:]) == {22}  # 20 calls, and two to spare


def test_who_keeps_every_step_is_given_at_most_so_many_evaluations():
    asked = []

    def solve(problem, f, rtol, evals):
        asked.append(evals)
        return iterate(problem, f, rtol, evals)

    report = solvers.measure(PROBLEM, [of("short", solve, most=10)], rtol=RTOL, turns=1)
    assert set(asked) == {10}
    assert report.get("short").reached == 0
    broyden = [each.most for each in contestants() if each.method == "Broyden"]
    assert broyden and set(broyden) == {400}


@pytest.mark.parametrize("each", contestants(), ids=lambda each: each.name)
def test_every_contestant_solves_an_easy_problem(each):
    report = solvers.measure(PROBLEM, [each], rtol=1e-5, turns=1)
    measured: Any = report.get(each.name)
    assert measured.error is None
    assert measured.all_reached and measured.wrong == 0
    assert 1 <= measured.calls <= 60 and measured.ms > 0
    assert (measured.ops is None) == (each.family == "scipy")


def test_finished_samples_leave_where_the_problem_allows_it():
    r = torch.tensor([[0.1], [0.1], [0.1], [0.9]], dtype=torch.float64)
    problem = Problem(
        name="one hard",
        kind="hard",
        f=lambda z, b, r: r * z + b,
        z0=torch.zeros_like(B),
        operands=(B, r),
        max_evals=300,
        per_sample=True,
    )
    picard = next(each for each in contestants() if each.name == "Picard")
    measured: Any = solvers.measure(problem, [picard], rtol=RTOL, turns=0).get("Picard")
    assert measured.all_reached
    assert measured.f_samples < 2 * measured.calls < 4 * measured.calls
