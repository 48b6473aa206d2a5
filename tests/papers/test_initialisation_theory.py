"""The studies of linear and wide networks: their measures at tiny sizes, their derived figures."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pandas as pd
import pytest
import torch

from equilibria.nn.init import fill
from equilibria.nn.init.normal import disk
from equilibria.run.studies import catalog, pages, runner
from equilibria.run.studies.measures.timing import WORDS, methods
from equilibria.run.studies.study import Point
from equilibria.run.studies.views import NOT_RUN
from equilibria.theory import critical_V, length_variance, second_moment
from papers.initialisation import linear, moments, solvers, threshold, variance, wide
from papers.initialisation.common import NAMES, PAPER

RESULTS = Path(__file__).parents[2] / "results"
WIDTH, DELTAS = 30, (0.7, 0.3)


def weight(ensemble, seed):
    generator = torch.Generator().manual_seed(seed)
    if ensemble == "normal":  # of which the study draws the eigenvalues alone
        return torch.diag(disk(WIDTH, generator))
    w = torch.empty(WIDTH, WIDTH, dtype=torch.float64)
    fill(w, ensemble, 1.0, generator=generator)
    return w


@pytest.mark.parametrize("ensemble", list(NAMES))
def test_traces_are_those_of_the_inverse(ensemble):
    w = weight(ensemble, 3)
    found = linear.draw_tied(ensemble, WIDTH, DELTAS, 3)
    for delta, (second, fourth) in zip(DELTAS, found, strict=True):
        V = critical_V(ensemble) * (1 - delta)
        m = torch.linalg.inv(torch.eye(WIDTH, dtype=w.dtype) - math.sqrt(V) * w)
        gram = m.mH @ m
        assert second == pytest.approx(float(gram.diagonal().real.mean()), rel=1e-10)
        assert fourth == pytest.approx(2 * float((gram @ gram).diagonal().real.mean()), rel=1e-10)


def test_untied_states_follow_the_theory():
    found = list(linear.draw_untied("orthogonal", 100, 0.5, 20, 0))
    medians = torch.tensor(found, dtype=torch.float64).median(0).values.tolist()
    # Of 100 units a state is off by 2 %, its length variance by 3 %.
    assert medians[0] == pytest.approx(second_moment("orthogonal", 0.5, tied=False), rel=0.02)
    assert medians[1] == pytest.approx(length_variance("orthogonal", 0.5, tied=False), rel=0.03)
    settled, apart = linear.count_steps(0.5)
    assert 0.5**settled < 1e-4 and 0.5**apart < 0.15


def test_statistics_of_the_draws_are_relative_to_the_theory():
    limit = linear.theory("length", "gaussian", "tied", 0.5)
    assert limit == length_variance("gaussian", 0.5)
    row = linear.summary("gaussian", "tied", 0.5, [(2, 0.9 * limit), (2, limit), (2, 1.3 * limit)])
    assert row["second_deviation"] == row["second_error"] == 0  # 1 / (1 - V)
    assert row["length_deviation"] == 0 and row["length_error"] == pytest.approx(0.1)
    assert [row[f"length_{edge}"] / limit for edge in ("min", "max")] == pytest.approx([0.9, 1.3])


def test_a_slope_is_the_power_of_a_law():
    assert linear.slope(pd.Series({1: 8.0, 2: 2.0, 4: 0.5})) == pytest.approx(-2)


@pytest.mark.parametrize("ensemble", ["gaussian", "goe"])
def test_linear_networks_are_measured(measured, ensemble):
    kinds = ("tied", 40), ("untied", 20)
    points = [linear.point(ensemble, *each, (0.7, 0.4), draws=3, minutes=1) for each in kinds]
    rows = measured(moments.STUDY, points).rows
    assert rows["delta"].tolist() == 2 * [0.7, 0.4]
    assert (rows["length_min"] <= rows["length"]).all()
    assert rows["second_error"].between(0, 0.3).all()


def test_wide_networks_are_measured(measured):
    sizes = {"width": 40, "draws": 2, "inputs": 2, "steps": 60, "scales": (0.4, 3.0)}
    measure = partial(wide.iterate, **sizes)
    points = [Point(factors={"ensemble": each}, measures=[measure]) for each in PAPER]
    rows = measured(variance.STUDY, points).rows
    counts = rows.groupby("ensemble").size().to_dict()  # one of each draw of the GOE
    assert counts == {"gaussian": 2, "orthogonal": 2, "goe": 4}
    assert rows.loc[rows["scale"] == 0.4, "converged"].dropna().tolist() == [1] * 3
    assert rows.loc[rows["scale"] == 3.0, "converged"].dropna().max() < 1
    assert rows.loc[rows["scale"] == 0.4, "radius"].max() < 1


def test_solvers_are_compared_at_every_scale(measured):
    sizes = {"width": 24, "draws": 1, "inputs": 2, "scales": (0.25, 3.0)}
    measure = partial(wide.solve, solvers=methods(1e-4, 100), **sizes)
    factors = {"activation": "hard-tanh", "ensemble": "gaussian"}
    rows = measured(solvers.STUDY, [Point(factors=factors, measures=[measure])]).rows
    assert rows["solver"].tolist() == [*WORDS, *WORDS]
    assert (rows.loc[rows["scale"] == 0.25, ["converged", "both", "same"]] == 1).all(axis=None)
    assert rows.loc[rows["converged"] == 0, "evals"].isna().all()


@pytest.mark.parametrize(
    ("shares", "expected"),
    [([1.0, 0.75, 0.25], 2.5), ([0.2, 0.0, 0.0], 1.0), ([1.0, 1.0, 0.9], None)],
)
def test_where_half_of_the_samples_stop(shares, expected):
    rows = pd.DataFrame({"scale": [1.0, 2.0, 3.0], "converged": shares})
    assert threshold.half(rows) == pytest.approx(expected)


def test_the_largest_workable_scale_has_no_gap_below_it():
    rows = pd.DataFrame({"scale": [1.0, 2.0, 3.0, 4.0], "converged": [1.0, 0.9, 0.5, 1.0]})
    assert solvers.largest(rows) == 2.0
    assert solvers.largest(rows[2:]) is None


def test_three_studies_show_the_rows_of_one():
    for name in ("variance", "radius", "threshold"):
        assert catalog.rows_of(f"initialisation/{name}") == "initialisation-variance"


def test_points_that_were_not_run_say_so_beside_those_that_were():
    study, path = catalog.find("initialisation/moments"), RESULTS / "initialisation-moments.csv"
    data = runner.collect(study, path)
    known = data.points["ensemble"] == "goe"
    part = replace(
        data,
        rows=data.rows[data.rows["ensemble"] == "goe"],
        points=data.points.assign(done=known),
    )
    page = pages.render(study, part)
    for grid in page.grids:
        for row in grid.rows:
            assert ("GOE" in row) != (NOT_RUN in row)
    assert [len(panel.series) for panel in page.panels] == [3, 3, 1]
