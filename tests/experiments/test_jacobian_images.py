"""The Jacobian study on images: trained, stopped early, timed and weighed on tiny networks."""

import json

import pytest
import torch
from rich.console import Console

from equilibria.bench import record
from equilibria.experiments import draw
from equilibria.experiments.case import Done, Place
from equilibria.experiments.experiment import NOT_RUN
from equilibria.experiments.jacobian import (
    accuracies,
    costs,
    criterion,
    expenses,
    growth,
    images,
    tables,
)
from equilibria.experiments.registry import EXPERIMENTS
from equilibria.experiments.runner import publish
from equilibria.solve import Anderson
from equilibria.train import recipe as recipes

QUIET = Console(quiet=True)
MACHINE = {"threads": 1, "machine": "one core"}


def shown(show, done, folder):
    """The tables by their title, each row as wide as its heading; the figure is drawn too."""
    page = show(done)
    draw.draw(page.panels, folder / "figure.svg")
    for table in page.tables:
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
        json.dumps(record.finite(table.rows), allow_nan=False)
    return {table.title.split(":")[0]: table for table in page.tables}


@pytest.mark.parametrize("scale", ["cpu", "gpu"])
@pytest.mark.parametrize("name", images.NAMES)
def test_trainings_differ_where_they_say(name, scale):
    recipe, plain = images.recipe_of(name, scale, 1), images.recipe_of("plain", scale, 1)
    assert recipe.seed == 1 and recipe.model == plain.model and recipe.task == plain.task
    assert (recipe.epochs, recipe.batch_size) == (plain.epochs, plain.batch_size)
    limit = images.THIRD if name.startswith("jr") else images.LIMIT
    assert recipe.solver.max_evals == recipe.adjoint.linear.max_evals == limit
    assert 3 * images.THIRD == images.LIMIT
    if name.startswith("jr"):
        assert images.regularised(recipe.regulariser.gamma) == name
        assert recipe.optimiser == plain.optimiser
    else:
        assert recipe.regulariser is None
        assert (recipe.optimiser.weight_decay == images.DECAY) == (name == "decay")
    assert recipes.parse(recipes.dump(recipe)) == recipe


def test_the_study_runs_to_its_end(small, reproduce, monkeypatch):
    seeds = dict.fromkeys(images.NAMES, (0,))
    monkeypatch.setattr(images, "SEEDS", seeds)
    monkeypatch.setattr(images, "ALL", (0,))
    monkeypatch.setattr(images, "GAMMAS", (images.BEST,))
    monkeypatch.setattr(tables, "NAMES", ("plain", images.regularised(images.BEST)))
    for name in ("jacobian/growth", "jacobian/tables"):
        outcome = reproduce(name)
        assert not outcome.missing, outcome.missing
        found, paths = publish(EXPERIMENTS[name], outcome, small / "out", "typed")
        assert NOT_RUN not in [cell for table in found for row in table.rows for cell in row]
        assert "not run" not in paths[1].read_text()
        if name == "jacobian/growth":
            epochs = outcome.done[images.key("plain", 0)].value["metrics"]
            assert all(set(e["probe"]) == {"forward", "adjoint", "norm"} for e in epochs)
    stops = outcome.done[costs.stopped_key(images.key("plain", 0))].value
    assert list(stops) == [str(limit) for limit in costs.LIMITS]
    means = [stops[str(limit)]["forward"]["evals"]["mean"] for limit in costs.LIMITS]
    assert means[0] == 1 and means == sorted(means)
    assert all(mean <= limit for mean, limit in zip(means, costs.LIMITS, strict=True))
    memory = outcome.done[costs.MEMORY].value
    assert memory["step"]["penalised"] > memory["step"]["regularised"]
    assert memory["step"].keys() == {"plain", "regularised", "penalised", "resnet"}
    for peaks in memory["inference"].values():
        assert peaks["none"] < peaks["recipe"] and peaks["none"] < peaks["broyden"]
    steps = outcome.done[costs.times_key(0)].value["steps"]
    assert steps["plain"]["penalised"] is None and steps["regularised"]["penalised"] > 0


def test_a_solver_that_keeps_more_steps_needs_more_memory(small):
    recipe = images.recipe_of("plain", "cpu")
    task = recipe.task.load()
    torch.manual_seed(0)
    model = task.model(recipe.model, **recipe.layer())
    model.deq.solver = Anderson(rtol=0.0, history=2)
    before = model.deq.solver, model.deq.eval_solver
    inputs = task.sample("test", 8).inputs
    few, many = (costs.inference_bytes(model, inputs, limit) for limit in (4, 16))
    state = sum(leaf.numel() * 4 for leaf in model(inputs).solution.value)
    # A state an evaluation, in a buffer that doubles: 16 against 8.
    assert many["broyden"] - few["broyden"] >= 8 * state
    assert abs(many["none"] - few["none"]) < state
    assert abs(many["recipe"] - few["recipe"]) < 2 * state  # two of them are kept
    assert (model.deq.solver, model.deq.eval_solver) == before and model.training


# --- pages of canned results ---------------------------------------------------------------------


def trained(seconds, *, diverged=None, **facts):
    epochs = [
        {
            "epoch": number,
            "step": 100 * number,
            "seconds": seconds if number > 1 else 1.0,
            "train": {"forward": {"evals": None if number == 1 else {"mean": 9.0}}},
            "valid": {"accuracy": 0.4},
            "probe": {"forward": 0.01 * number, "adjoint": 0.02, "norm": 0.3},
            "spectral_radius": {"mean": 0.8},
        }
        for number in (1, 2, 3)
    ]
    value = {
        "parameters": 50_000,
        "source": "CIFAR-10 (copy)",
        "metrics": epochs,
        "seconds": sum(epoch["seconds"] for epoch in epochs),
        "evaluation": None if diverged else {"accuracy": 0.5},
        "diverged": diverged,
    }
    settings = {"recipe": {"pretrain": {"steps": 100}}}
    return Done(value, {**MACHINE, "settings": settings, **facts})


def stops(full, third):
    """Accuracies in percent at the limits, `third` at all but the last."""
    return Done(
        {
            str(limit): {"accuracy": (full if limit == images.LIMIT else third) / 100}
            for limit in costs.LIMITS
        },
        MACHINE,
    )


@pytest.fixture
def done():
    """Results as they are hoped for: the penalty costs .2 points, stopping 2, epochs 2 to 1."""
    best = images.regularised(images.BEST)
    found = {images.resnet_key(): trained(1.0)}
    for name in images.NAMES:
        for seed in images.SEEDS[name]:
            key = images.key(name, seed)
            found[key] = trained(10.0 if name == best else 20.0)
            found[costs.stopped_key(key)] = stops(50.0, 49.8 if name == best else 48.0)
    steps = {"plain": {"step": 9.0}, "regularised": {"step": 5.0}, "resnet": {"step": 1.0}}
    read = {"plain": 30.0, "stopped": 12.0, "regularised": 10.0, "resnet": 5.0}
    for seed in images.ALL:
        found[costs.times_key(seed)] = Done({"read": read, "steps": steps}, MACHINE)
    peaks = {
        "plain": {"recipe": 200, "broyden": 400, "none": 100},
        "stopped": {"recipe": 200, "broyden": 200, "none": 100},
        "regularised": {"recipe": 200, "broyden": 160, "none": 100},
    }
    mib = 2**20
    found[costs.MEMORY] = Done(
        {
            "step": {"plain": mib, "regularised": mib, "penalised": 2 * mib, "resnet": mib},
            "inference": peaks,
        },
        MACHINE,
    )
    return found


def judged(done):
    table = criterion.criterion(done)
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def test_what_is_asked_is_read_from_the_seeds(done):
    rows = judged(done)
    assert [row["seed"] for row in rows] == ["0", "1", "2", "mean of 3"]
    for row in rows:
        assert row["lost by the penalty, points"] == pytest.approx(0.2)
        assert row["lost by stopping, points"] == pytest.approx(2.0)
        assert row["stopping over penalty"] == pytest.approx(10)
        assert row["a training step without over with, in turns"] == 1.8
        assert row["an epoch without over with, as trained"] == 2 and row["as asked"] == "yes"


@pytest.mark.parametrize(
    ("plain", "third", "penalised", "verdict"),
    [
        (50.0, 48.0, 49.4, "accuracy no, time yes"),  # the penalty costs too much
        (50.0, 48.7, 49.5, "accuracy no, time yes"),  # stopping costs less than 3 times that
        (50.0, 49.2, 50.0, "accuracy no, time yes"),  # stopping costs less than a point
        (50.0, 48.9, 50.3, "yes"),  # the penalty gains
    ],
)
def test_what_falls_short_is_said(done, plain, third, penalised, verdict):
    for seed in images.ALL:
        done[costs.stopped_key(images.key("plain", seed))] = stops(plain, third)
        best = images.key(images.regularised(images.BEST), seed)
        done[costs.stopped_key(best)] = stops(penalised, penalised)
    assert {row["as asked"] for row in judged(done)} == {verdict}


def test_steps_in_turns_go_before_epochs_and_two_machines_are_not_compared(done):
    slow = {"plain": {"step": 6.0}, "regularised": {"step": 5.0}}
    done[costs.times_key(0)] = Done({"steps": slow}, MACHINE)
    done[images.key("plain", 1)] = trained(20.0, machine="another")
    assert judged(done)[1]["as asked"] == "yes"
    del done[costs.times_key(1)]
    rows = judged(done)
    assert rows[0]["as asked"] == "accuracy yes, time no"
    assert rows[1]["an epoch without over with, as trained"] is None
    assert rows[1]["as asked"] == "accuracy yes, time not compared"
    assert rows[-1]["a training step without over with, in turns"] is None  # nor of two of three
    for seed in (0, 2):
        del done[costs.times_key(seed)]
    assert judged(done)[0]["as asked"] == "yes"


def test_the_shallow_epochs_are_no_epochs_of_solves(done):
    assert criterion.epoch_seconds(trained(20.0)) == 20.0
    only_shallow = trained(20.0)
    only_shallow.record["settings"]["recipe"]["pretrain"]["steps"] = 10_000
    assert criterion.epoch_seconds(only_shallow) is None


def test_the_tables_stand_whole_in_part_and_diverged(done, tmp_path):
    found = shown(tables.show, done, tmp_path)
    share = {(row[0], row[1]): row[2:] for row in found["Section 3.4"].rows}
    regularised = share[accuracies.READ_AS["regularised"], expenses.SOLVERS["broyden"]]
    assert regularised[2:] == [pytest.approx(37.5), 2.5]
    ours = [row for row in found["Table 3"].rows if row[0] == accuracies.OURS]
    assert [row[1] for row in ours] == [0.0, *images.GAMMAS]
    assert ours[0][3:] == [*[pytest.approx(48)] * 6, pytest.approx(50)]
    done[images.resnet_key()] = trained(1.0, diverged="the loss is nan")
    del done[costs.times_key(0)], done[costs.MEMORY]
    del done[costs.stopped_key(images.key("plain", 2))]
    found = shown(tables.show, done, tmp_path)
    rows = {row[1]: row for row in found["Table 2"].rows if row[2] == accuracies.OURS}
    assert rows["ResNet"][4] == "diverged"
    assert rows[accuracies.READ_AS["plain"]][-1] == "2 of 3"
    assert judged(done)[2]["as asked"] is None and judged(done)[3]["seed"] == "mean of 2"


def test_a_training_that_diverged_enters_no_mean(done, tmp_path):
    best = images.regularised(images.BEST)
    done[images.key("plain", 1)] = trained(20.0, diverged="the loss is nan")
    rows = judged(done)
    assert rows[1]["without penalty, 18: accuracy, %"] == "diverged" and rows[1]["as asked"] is None
    assert rows[-1]["seed"] == "mean of 2"
    for seed in images.ALL:
        done[images.key(best, seed)] = trained(10.0, diverged="the loss is nan")
        del done[costs.stopped_key(images.key(best, seed))]
    found = shown(tables.show, done, tmp_path)
    rows = {row[1]: row for row in found["Table 2"].rows if row[2] == accuracies.OURS}
    assert rows[accuracies.READ_AS["plain"]][-1] == "2 of 3"
    assert rows[accuracies.READ_AS["regularised"]][4] == "diverged"
    stopped = {row[1]: row for row in found["Table 3"].rows if row[0] == accuracies.OURS}
    assert set(stopped[images.BEST][3:]) == {"diverged"}
    errors = {row[0]: row[2] for row in found["Figure 6"].rows if row[1] == accuracies.OURS}
    assert errors[accuracies.READ_AS["regularised"]] == "diverged"


def test_a_training_that_diverged_is_not_read(tmp_path):
    place = Place(folder=tmp_path, out=tmp_path, console=QUIET)
    folder = place.shared(images.key("plain", 0))
    folder.mkdir(parents=True)
    (folder / "result.json").write_text('{"value": {"diverged": "the loss is nan"}}')
    assert costs.stopped("plain", 0).run(place) == {"diverged": "the loss is nan"}


def test_growth_shows_means_over_the_seeds(done, tmp_path):
    (table,) = shown(growth.show, done, tmp_path).values()
    assert len(table.rows) == sum(len(images.SEEDS[name]) for name in growth.NAMES)
    assert table.rows[0][2:6] == [40, 9, 0.01, 0.03]
    assert table.columns[2] == "validation accuracy, %"
    early = trained(1.0, diverged="at step 3")
    done[images.key("decay", 0)] = Done({**early.value, "metrics": []}, early.record)
    del done[images.key("plain", 2)]
    (table,) = shown(growth.show, done, tmp_path).values()
    ended = {(row[0], row[1]): row[2] for row in table.rows}
    assert ended[images.WORDS["decay"], 0] == "diverged in the first epoch"
    assert ended[images.WORDS["plain"], 2] == NOT_RUN
