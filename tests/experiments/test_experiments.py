"""Every experiment runs to its end on tiny recipes, and shows what it has and what it lacks."""

import json
import time

import pytest

from equilibria.experiments.case import SHARED, CaseError
from equilibria.experiments.experiment import NOT_RUN
from equilibria.experiments.registry import EXPERIMENTS
from equilibria.experiments.runner import check, publish

NAMES = sorted(EXPERIMENTS)


@pytest.mark.parametrize("name", NAMES)
def test_what_was_not_run_says_so(small, reproduce, name):
    experiment = EXPERIMENTS[name]
    outcome = reproduce(name, deadline=time.monotonic())
    assert not outcome.done and outcome.missing and not outcome.failed
    tables, paths = publish(experiment, outcome, small / "out", "typed")
    for table in tables:
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
    whole = json.loads(paths[0].read_text())
    assert whole["missing"].keys() == {case.key for case in experiment.cases("cpu")}
    assert "<svg" in paths[1].read_text() and "not run" in paths[1].read_text()


@pytest.mark.parametrize("scale", ["cpu", "gpu"])
def test_the_shipped_recipes_make_every_case(scale):
    shared = {}
    for name, experiment in EXPERIMENTS.items():
        assert experiment.name == name and experiment.paper and experiment.subject
        for case in check(experiment.cases(scale)):
            assert case.minutes > 0 and case.description
            json.dumps(case.settings)
            if case.shared:  # one training, whatever experiment asks for it
                assert shared.setdefault(case.key, case.settings) == case.settings


def whole(outcome):
    assert not outcome.missing, outcome.missing
    return outcome


def test_networks_are_trained_once_solved_and_drawn(small, reproduce):
    outcome = whole(reproduce("deq/solvers"))
    tables, _ = publish(EXPERIMENTS["deq/solvers"], outcome, small / "out", "typed")
    residuals = [row[2:] for row in tables[0].rows]
    assert len(residuals) == 6 and all(0 <= r < 1 for row in residuals for r in row)
    trained = {path: path.stat().st_mtime_ns for path in small.glob(f"out/{SHARED}/*/result.json")}
    assert len(trained) == 2
    outcome = reproduce("deq/growth", only=lambda key: "trellis" not in key)
    assert list(outcome.done) == ["ptb-transformer-deq-0"]
    assert trained == {path: path.stat().st_mtime_ns for path in trained}


def test_a_training_that_was_stopped_goes_on_and_is_the_same(small, reproduce, monkeypatch):
    from equilibria.experiments.case import Place

    key = "ptb-transformer-deq-0"
    alone = reproduce("deq/growth", out=small / "alone", only=key.__eq__).done[key]
    calls = iter([False, False, True])
    monkeypatch.setattr(Place, "late", property(lambda place: next(calls, True)))
    first = reproduce("deq/growth", only=key.__eq__)
    assert first.missing[key] == "begun; the budget is spent"
    monkeypatch.undo()
    import tiny

    tiny.shrink(monkeypatch, small)
    again = reproduce("deq/growth", only=key.__eq__).done[key]
    assert again.value["evaluation"] == alone.value["evaluation"]
    for one, other in zip(again.value["metrics"], alone.value["metrics"], strict=True):
        assert one["train"] == other["train"] and one["valid"] == other["valid"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_runs_to_its_end(small, reproduce, name):
    experiment = EXPERIMENTS[name]
    outcome = whole(reproduce(name))
    tables, paths = publish(experiment, outcome, small / "out", "typed")
    figures = [cell for table in tables for row in table.rows for cell in row]
    if name != "deq/tables":  # WikiText-103 is never run there
        assert NOT_RUN not in figures
    assert paths[1].read_text().count("not run") == 0


def test_a_result_from_before_a_recipe_had_a_field_is_still_read(small, reproduce):
    case = EXPERIMENTS["deq/memory"].cases("cpu")[0]
    folder = case.folder(small / "out", "deq/memory")
    folder.mkdir(parents=True)
    case.write(folder, {"points": []}, 1.0, "typed", {})
    file = folder / "result.json"
    old = json.loads(file.read_text())
    del old["settings"]["recipe"]["clip"], old["settings"]["recipe"]["model"]["pre_norm"]
    file.write_text(json.dumps(old))
    assert case.read(folder, {}).value == {"points": []}
    old["settings"]["recipe"]["clip"] = 3.0
    file.write_text(json.dumps(old))
    with pytest.raises(CaseError, match=r"recipe\.clip: 3\.0 there, None here"):
        case.read(folder, {})
