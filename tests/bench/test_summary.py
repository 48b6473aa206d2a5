"""Ratios and means over the measurements: what is compared, and what is not."""

import math

import pytest

from equilibria.bench.solvers import Measured, Report
from equilibria.bench.summary import (
    best_peer,
    convergence,
    costs,
    details,
    geometric_mean,
    problem_table,
    ratios,
    summary,
)


def measured(solver, method, ms, *, family="equilibria", reached=8, ops=9.0):
    return Measured(
        solver=solver,
        family=family,
        method=method,
        samples=8,
        reached=reached,
        residual=1e-5,
        evals_mean=4.0,
        evals_max=5,
        calls=5,
        f_samples=40,
        ops=ops,
        ops_mean=ops + 1,
        ops_outside=1,
        reads=5,
        bytes=640,
        ms=ms,
    )


def report(name, picard, default, plain, anderson, kind="tanh", f_ms=1.0):
    return Report(
        problem=name,
        kind=kind,
        batch=8,
        entries=10,
        state_bytes=320,
        f_ms=f_ms,
        turns=3,
        measured=[
            measured("Picard", "Picard", picard),
            measured("default", "default", default, reached=8 if default else 3),
            measured("torchdeq plain", "Picard", plain, family="torchdeq"),
            measured("torchdeq anderson", "Anderson", anderson, family="torchdeq"),
        ],
    )


REPORTS = [report("a", 2.0, 5.5, 4.0, 11.0), report("b", 1.0, None, 8.0, 6.0)]


def rows(table):
    return {row[0]: row[1:] for row in table.rows}


def test_the_geometric_mean():
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert math.isnan(geometric_mean([]))


def test_the_best_peer_is_chosen_by_hindsight():
    assert best_peer(REPORTS[0]).solver == "torchdeq plain"
    assert best_peer(REPORTS[1]).solver == "torchdeq anderson"


def test_the_summary_compares_what_was_timed():
    table = rows(summary(REPORTS))
    count, mean, worst, where, aim = table["Picard: times as fast as torchdeq's"]
    assert (count, worst, where) == (2, 2.0, "a")
    assert mean == pytest.approx(4.0)
    assert aim == "≥ 1.25, worst ≥ 1"
    count, mean, *_ = table["default: times as fast as torchdeq's best, by hindsight"]
    assert count == 1 and mean == pytest.approx(4.0 / 5.5)
    count, mean, *_ = table["overhead of the default, f >= 1 ms, matrix products and attention"]
    assert count == 1 and mean == pytest.approx(5.5 / 5)
    assert table["Anderson: times as fast as torchdeq's"][:2] == [0, None]


def test_ratios_have_a_gap_where_the_default_failed():
    table = rows(ratios(REPORTS))
    assert table["a"][1] == pytest.approx(2.0)
    assert table["b"][-3] is None and table["b"][-1] is None


def test_who_converges_is_counted_in_samples():
    table = convergence(REPORTS)
    assert table.columns[2:] == ["Picard", "default", "torchdeq plain", "torchdeq anderson"]
    assert rows(table)["b"] == [8, 8, 3, 8, 8]
    assert rows(table)["all"][2] == "68.8 %"


def test_convergence_is_compared_with_the_best_peer():
    table = rows(summary(REPORTS))
    assert table["samples converged / the best peer's, default"][1:4] == [
        pytest.approx((3 / 8) ** 0.5),
        3 / 8,
        "b",
    ]
    assert table["samples converged / the best peer's, best of ours"][2] == 1


def test_costs_are_those_of_the_problems_that_were_solved():
    table = rows(costs(REPORTS))
    assert table["default"] == [1, pytest.approx(5.5 / 5), 10.0, 1.0, 2.0]
    assert table["Picard"][:2] == [2, pytest.approx(math.sqrt(2.0 * 1.0) / 5)]


def test_the_details_say_what_share_was_reached():
    table = problem_table(REPORTS[1])
    assert rows(table)["default"][-1] == "38 % reached the tolerance"
    assert rows(table)["Picard"][-2] == 2.0  # bytes in states
    assert len(details(REPORTS).rows) == 8
    assert summary([]).rows and convergence([]).rows and ratios([]).rows == []
