"""Studies of reasoning: baselines train as long, and are judged on what they were not tuned on."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from equilibria.zoo.reasoning.model.reasoner import FixedDepthConfig
from papers.reasoning import common, mazes, parity, sudoku, words


@pytest.mark.parametrize("study", [parity, words, mazes, sudoku], ids=lambda each: each.__name__)
def test_baselines_take_as_many_steps_and_evaluations(study) -> None:
    for point in study.points("cpu"):
        (recipe,) = (each.recipe for each in point.runs.values())
        if point.factors["network"] in (common.EQUILIBRIUM, common.EXACT):
            assert not point.reads
            continue
        (own,) = point.reads
        assert recipe.epochs >= own.epochs
        if point.factors["network"] != "LSTM":
            spent, least = (each.epochs * common.count_step(each) for each in (recipe, own))
            assert spent >= least


def test_a_step_is_counted_in_evaluations() -> None:
    names = [name for name in common.NETWORKS if name != "LSTM"]
    points = {name: common.point("parity", name, 0, [], 1.0) for name in names}
    counts = {name: common.count_step(each.runs["run"].recipe) for name, each in points.items()}
    assert counts["equilibrium"] == 20 + 3 * 8
    assert counts["tied, 8 deep"] == counts["untied, 8 deep"] == 24
    assert counts["tied, progressive"] == 3 * 28 + 13.5 + 3 * (1 + 27 / 4)


def test_applications_are_chosen_on_one_half_and_judged_on_the_other() -> None:
    right = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 1], [0, 1, 1, 1]]).bool()
    assert common.choose_times(right, [1, 2, 4]) == {"exact_here": 0.0, "times": 1}
    assert common.choose_times(right.flip(1), [1, 2, 4]) == {"exact_here": 0.5, "times": 4}


def test_applications_go_up_to_the_limit_of_the_equilibrium_network() -> None:
    stops = common.list_stops(1000)
    assert stops[:6] == [1, 2, 3, 4, 6, 8] and stops[-1] == 1000
    assert max(b / a for a, b in itertools.pairwise(stops)) <= 2


def test_iterates_are_those_of_a_deeper_network() -> None:
    torch.manual_seed(0)
    model = FixedDepthConfig(shape=(1, 9), classes=2, depth=3, test_depth=8).build()
    x = torch.randn(4, 1, 9)
    found = common.iterate(model, x, [1, 3, 8])
    assert model.training
    torch.testing.assert_close(found[1], model(x).output)
    torch.testing.assert_close(found[2], model.eval()(x).output)


@pytest.mark.parametrize("network", ["tied, 8 deep", common.EQUILIBRIUM])
def test_what_is_measured_of_an_untrained_network(network: str) -> None:
    options = ("--task.test", "40", "--task.larger", "[128]", "--solver.max_evals", "40")
    point = common.point("parity", network, 0, [], 1.0, options)
    recipe = point.runs["run"].recipe
    task = recipe.task.load()
    torch.manual_seed(0)
    model = task.complete(recipe.model).build(**recipe.layer())
    run = SimpleNamespace(recipe=recipe, task=task, load=lambda: SimpleNamespace(model=model))
    context = SimpleNamespace(run=run, reads=point.reads)
    rows = list(parity.measure_reach(context))
    assert [row["stop"] for row in rows] == [1, 2, 4, 8, 16, 32, 64, 128]
    assert all(row["places"] <= row["bound"] for row in rows) and rows[-1]["bound"] == 1
    if network == common.EQUILIBRIUM:
        found = common.measure_breadth(context, count=2)
        assert {"auroc", "auroc_converged"} <= found.keys()
    else:
        found = list(common.measure_iterated(context))
        assert [row["size"] for row in found] == [16, 128]
        assert all(row["times"] <= 40 and row["exact_here"] < 0.1 for row in found)


def test_a_score_that_is_no_number_is_the_worst() -> None:
    right = torch.tensor([True, True, False, False])
    score = torch.tensor([-0.1, -0.2, math.nan, -math.inf])
    assert common.area_under_curve(score, right) == 1.0
    assert common.area_under_curve(score, ~right) == 0.0
    assert common.area_under_curve(score[:2], right[:2]) is None
