"""The recipe's regulariser, correction and controller: schedules, draws, logs, resuming."""

import io
import math

import pytest
import torch
from rich.console import Console

from equilibria.run import recipe as recipes
from equilibria.run.config import ConfigError
from equilibria.run.loop import Interrupted, fit
from equilibria.run.regularizer import EvaluationBudget, JacobianPenalty
from equilibria.run.start import TrainingError

UNTIMED = {"seconds": 0, "throughput": {}}
STEPS = 101  # so that step 100 is the last, at the end of the ramp


def gammas(**options):
    penalty = JacobianPenalty(gamma=1.6, final_gamma=2.6, **options)
    return [penalty.at(step, STEPS)[0] for step in range(STEPS)]


def test_a_line_from_gamma_to_final_gamma():
    found = gammas()
    assert found[0] == 1.6 and found[50] == pytest.approx(2.1) and found[100] == pytest.approx(2.6)
    later = gammas(begin=0.2, end=0.6)
    assert later[:21] == [1.6] * 21 and later[40] == pytest.approx(2.1)
    assert later[60:] == pytest.approx([2.6] * 41)
    assert later == sorted(later)


def test_stairs_climb_in_equal_jumps_and_end_at_the_top():
    found = gammas(stairs=2, end=0.8)
    assert found[:40] == [1.6] * 40
    assert found[40:80] == pytest.approx([2.1] * 40) and found[80:] == pytest.approx([2.6] * 21)
    jump = gammas(stairs=1, begin=0.5, end=0.5)
    assert jump[:50] == [1.6] * 50 and jump[50:] == pytest.approx([2.6] * 51)


def test_the_probability_moves_too():
    penalty = JacobianPenalty(probability=0.0, final_probability=1.0)
    assert penalty.at(0, STEPS) == (1.0, 0.0) and penalty.at(100, STEPS) == (1.0, 1.0)
    drawn = [penalty.drawn(step, 10_000, seed=0) for step in range(10_000)]
    quarters = [sum(drawn[i : i + 2500]) / 2500 for i in range(0, 10_000, 2500)]
    assert quarters == pytest.approx([0.125, 0.375, 0.625, 0.875], abs=0.04)


def test_draws_are_of_the_seed_and_the_step_alone():
    penalty = JacobianPenalty(probability=0.35)
    drawn = [penalty.drawn(step, 4000, seed=3) for step in range(4000)]
    assert sum(drawn) / 4000 == pytest.approx(0.35, abs=0.03)
    assert drawn == [penalty.drawn(step, 4000, seed=3) for step in range(4000)]
    other = [penalty.drawn(step, 4000, seed=4) for step in range(4000)]
    both = sum(bool(a and b) for a, b in zip(drawn, other, strict=True)) / 4000
    assert both == pytest.approx(0.35**2, abs=0.03)  # independent


def test_the_controller_holds_a_budget():
    """A layer whose evaluations fall with the penalty: it settles where they meet the budget."""
    controller = EvaluationBudget(evals=10, gain=1.0)
    factor, evals = 1.0, 20.0
    for _ in range(60):
        factor = controller.adapt(factor, evals)
        evals = 15.0 - 3.0 * math.log(factor)
    assert evals == pytest.approx(10, abs=0.1)
    assert controller.adapt(1e9, 10) == controller.highest
    assert controller.adapt(0.011, 1) == controller.lowest
    assert controller.adapt(1.0, 10) == 1.0
    assert controller.adapt(1.0, 1000) == pytest.approx(math.e)  # an outlier is worth one e


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (JacobianPenalty, {"gamma": -1.0}, "gamma must be finite and not negative"),
        (JacobianPenalty, {"final_gamma": math.inf}, "final_gamma must be finite"),
        (JacobianPenalty, {"probability": 1.5}, "probability must lie in"),
        (JacobianPenalty, {"begin": 0.9, "end": 0.5}, "shares of all steps"),
        (JacobianPenalty, {"stairs": 0}, "stairs must be at least 1"),
        (JacobianPenalty, {"samples": 0}, "samples must be at least 1"),
        (EvaluationBudget, {"evals": 0.5}, "evals must be at least 1"),
        (EvaluationBudget, {"every": 0}, "every must be at least 1"),
        (EvaluationBudget, {"gain": 0.0}, "gain must be positive"),
        (EvaluationBudget, {"lowest": 0.0}, "the factor begins at 1"),
        (EvaluationBudget, {"highest": 0.5}, "the factor begins at 1"),
    ],
)
def test_impossible_penalties_and_budgets_are_refused(kind, options, message):
    given = {"evals": 9} if kind is EvaluationBudget else {}
    with pytest.raises(ValueError, match=message):
        kind(**{**given, **options})


JR = ("--regularizer.name", "JacobianPenalty", "--regularizer.probability", "0.5")
BUDGET = ("--regularizer.controller.name", "EvaluationBudget", "--regularizer.controller.every")
CORRECTION = ("--correction.name", "FixedPointCorrection")


def test_a_recipe_names_it_and_keeps_it(tree):
    tree["regularizer"] = {
        "name": "JacobianPenalty",
        "gamma": 1.6,
        "final_gamma": 2.5,
        "probability": 0.35,
        "controller": {"name": "EvaluationBudget", "evals": 12},
    }
    tree["correction"] = {"name": "FixedPointCorrection", "count": 2}
    recipe = recipes.parse(tree)
    assert recipe.regularizer and recipe.regularizer.final_gamma == 2.5
    assert recipe.regularizer.controller == EvaluationBudget(evals=12)
    assert recipe.correction and recipe.correction.count == 2
    assert recipes.parse(recipes.dump(recipe)) == recipe
    plain = recipes.parse({**tree, "regularizer": None, "correction": None})
    assert plain.regularizer is None and plain.correction is None


def test_an_option_takes_a_regulariser_away(tree):
    tree["regularizer"] = {"name": "JacobianPenalty", "gamma": 2.0}
    assert recipes.parse(tree, ["--regularizer.name", "null"]).regularizer is None
    assert recipes.parse(tree, ["--regularizer.name=null"]).regularizer is None
    assert recipes.parse(tree, ["--regularizer.controller.name", "null"]).regularizer is not None
    with pytest.raises(ConfigError, match="unknown option"):
        recipes.parse(tree, ["--regularizer.name", "null", "--regularizer.gamma", "1"])
    with pytest.raises(ConfigError, match="solver: is missing"):
        recipes.parse(tree, ["--solver.name", "null"])


def test_a_budget_that_no_solve_can_exceed_is_refused(tree):
    with pytest.raises(ConfigError, match=r"solver\.max_evals is 30"):
        recipes.parse(tree, [*JR, *BUDGET, "5", "--regularizer.controller.evals", "30"])


def test_log_and_terminal_tell_penalty_share_and_gamma(make):
    trainer, folder = make("run", *JR, "--regularizer.gamma", "0.5", *CORRECTION)
    drawn = [trainer.recipe.regularizer.drawn(step, 10, 0) for step in range(10)]
    console = Console(file=io.StringIO(), width=200, color_system=None)
    fit(trainer, folder, console)
    for epoch, record in enumerate(folder.read_metrics()):
        mine = drawn[5 * epoch : 5 * epoch + 5]
        assert record["regulariser"]["applied"] == sum(mine) / 5
        assert record["regulariser"]["gamma"] == 0.5
        assert (record["regulariser"]["penalty"] or 0) > 0 or not any(mine)
        assert record["correction"]["loss"] > 0
    assert 0 < sum(drawn) < 10
    record = folder.read_metrics()[-1]["regulariser"]
    said = f"penalty in {100 * record['applied']:.0f} % of steps: 0.5 x {record['penalty']:.3f}"
    assert said in console.file.getvalue()


def test_in_reduced_precision(fitted):
    options = ("--precision", "bf16", "--epochs", "1", "--solver.rtol", "1e-2", *CORRECTION)
    _, folder = fitted("run", *JR[:2], *options)
    record = folder.read_metrics()[0]
    assert 0 < record["regulariser"]["penalty"] < 1 and 0 < record["correction"]["loss"] < 5


def test_without_them_nothing_changes(fitted, whole, weights):
    """A penalty of weight zero leaves the run as it is, to the last bit."""
    plain, folder = whole
    none, other = fitted("none", *JR, "--regularizer.gamma", "0")
    assert all(torch.equal(a, weights(none)[k]) for k, a in plain.items())
    assert "regulariser" not in folder.read_metrics()[0]
    assert other.read_metrics()[0]["regulariser"]["penalty"] is None


def test_the_penalty_lowers_evaluations_and_radius(fitted):
    def last(name, *options):
        _, folder = fitted(name, "--model.bound", "100", "--epochs", "4", *options)
        return folder.read_metrics()[-1]

    free, held = last("free"), last("held", *JR, "--regularizer.gamma", "20")
    assert held["spectral_radius"]["mean"] < 0.8 * free["spectral_radius"]["mean"]
    assert held["test"]["forward"]["evals"]["mean"] < free["test"]["forward"]["evals"]["mean"]


def test_the_controller_raises_gamma_while_solves_are_too_long(fitted):
    options = (*JR, *BUDGET, "2", "--regularizer.controller.evals", "2")
    trainer, folder = fitted("run", *options)
    factors = [record["regulariser"]["factor"] for record in folder.read_metrics()]
    assert 1 < factors[0] < factors[1] == trainer.stabilizer.factor
    easy, folder = fitted("easy", *options[:-1], "29")
    assert easy.stabilizer.factor < 1


def test_stopped_and_resumed_equals_uninterrupted(fitted, make, quiet, weights):
    options = (*JR, *BUDGET, "3", "--regularizer.controller.evals", "4", *CORRECTION)
    whole, folder = fitted("whole", *options)
    expected = folder.read_metrics()
    trainer, folder = make("broken", *options)
    with pytest.raises(Interrupted):
        fit(trainer, folder, quiet, stop=lambda: trainer.step == 7)
    again, folder = fitted("broken", *options, new=False)
    assert all(torch.equal(a, weights(whole)[k]) for k, a in weights(again).items())
    for one, other in zip(folder.read_metrics(), expected, strict=True):
        assert one | UNTIMED == other | UNTIMED
    assert again.stabilizer.state() == whole.stabilizer.state()


def test_an_infinite_penalty_stops_the_run_before_the_step(make, quiet, weights):
    trainer, folder = make("run", *JR[:2], "--regularizer.gamma", "1e300")
    before = weights(trainer)
    trainer.stabilizer.factor = 1e300
    with pytest.raises(TrainingError, match="the sum of the regulariser and the correction"):
        fit(trainer, folder, quiet)
    assert all(torch.equal(a, before[k]) for k, a in weights(trainer).items())
