"""Recurrent weights as a recipe names them: an ensemble, and a scale or a spectral radius."""

import io
import json
import random

import numpy
import pytest
import torch
from rich.console import Console

from equilibria.run import recipe as recipes
from equilibria.run.config import ConfigError
from equilibria.run.loop import Interrupted, fit, train
from equilibria.run.start import TrainingError, examine_start
from equilibria.stability import spectral_radius
from several import several, trainer_of

RADIUS = {"ensemble": "goe", "radius": 0.6}


def radius_of(trainer):
    """The largest spectral radius at the first batch of training."""
    model = trainer.model.eval()
    with torch.no_grad():
        operands = model.inject(trainer.feed.batch(0).inputs)
        solution = model.deq(*operands)
        radii = spectral_radius(model.deq.cell, solution.value, *operands)
    model.train()
    return float(radii.max())


def weight_of(trainer):
    return trainer.model.deq.cell.linear.weight.detach().clone()


@pytest.mark.parametrize("ensemble", ["gaussian", "orthogonal", "goe"])
def test_the_first_batch_has_the_radius_that_was_asked_for(tree, make, ensemble):
    tree["model"]["bound"] = None
    tree["initialization"] = {"ensemble": ensemble, "radius": 0.6}
    trainer, _ = make()
    assert radius_of(trainer) == pytest.approx(0.6, abs=0.025)
    assert trainer.start.beginning.radius == pytest.approx(0.6, abs=0.02)
    assert torch.equal(weight_of(trainer), weight_of(make("again")[0]))


def test_a_radius_scales_what_a_scale_would_draw(tree, make):
    """Also where it is measured on another device: the weights are drawn before they move."""
    tree["model"]["bound"] = None
    tree["initialization"] = {"ensemble": "gaussian", "radius": 0.6}
    one = weight_of(make("one")[0])
    tree["initialization"] = {"ensemble": "gaussian", "scale": 1.0}
    other = weight_of(make("other")[0])
    torch.testing.assert_close(one / one.norm(), other / other.norm())


def test_an_examination_leaves_all_random_generators(tree):
    recipe = recipes.parse({**tree, "initialization": RADIUS})
    task = recipe.task.load()
    states = random.getstate(), numpy.random.get_state()[1].copy(), torch.get_rng_state()
    found = examine_start(recipe, task, ensembles=["gaussian"], scales=[0.3], draws=1, samples=4)
    assert random.getstate() == states[0]
    assert (numpy.random.get_state()[1] == states[1]).all()
    assert torch.equal(torch.get_rng_state(), states[2])
    assert found.own is not None and found.refused == ""


def test_the_rest_of_the_model_and_of_the_run_is_as_without(tree, make, weights):
    plain = weights(make("plain")[0])
    tree["initialization"] = RADIUS
    begun = weights(make("begun")[0])
    changed = {name for name, value in plain.items() if not torch.equal(value, begun[name])}
    assert changed == {"deq.cell.linear.parametrizations.weight.original"}


def test_without_scale_and_radius_the_scale_is_one(tree, make):
    tree["model"]["bound"] = None
    tree["initialization"] = {"ensemble": "orthogonal"}
    (row,) = make()[0].start.beginning.rows
    assert row.scale == 1 and row.gain == pytest.approx(1)


def test_what_was_set_is_printed_and_recorded(tree, make):
    tree |= {"initialization": RADIUS, "epochs": 1}
    trainer, folder = make()
    fit(trainer, folder, Console(file=(out := io.StringIO()), width=200))
    assert "Recurrent weights: deq.cell.linear.weight (16 x 16): goe, scale" in out.getvalue()
    assert "spectral radius at the first batch: 0." in out.getvalue()
    recorded = json.loads(folder.info.read_text())["initialisation"]
    assert recorded["radius"] == pytest.approx(0.6, abs=0.02)
    assert recorded["ensembles"] == {"deq.cell.linear.weight": ["goe"]}
    assert 0 < recorded["gain"]["deq.cell.linear.weight"] < 1


def test_a_radius_that_cannot_be_had_is_said_before_there_is_a_run(tree, tmp_path):
    """And that it is searched for."""
    out = io.StringIO()
    tree["model"]["bound"] = 0.3
    tree["initialization"] = {"ensemble": "gaussian", "radius": 0.8}
    recipe = recipes.parse(tree)
    with pytest.raises(TrainingError, match=r"initialization\.radius 0\.8: .*measured were"):
        train(recipe, tmp_path / "run", console=Console(file=out, width=200))
    assert not (tmp_path / "run").exists()
    assert "Searching for the scale" in out.getvalue() and "radius of 0.8" in out.getvalue()


def test_resumed_is_uninterrupted_and_measures_nothing_again(
    fitted, tree, quiet, weights, tmp_path, monkeypatch
):
    tree["initialization"] = RADIUS
    whole, _ = fitted("whole")
    recipe, steps = recipes.parse(tree), iter(range(1, 100))
    with pytest.raises(Interrupted):
        train(recipe, tmp_path / "broken", console=quiet, stop=lambda: next(steps) == 4)

    def never(*_, **__):
        raise AssertionError("the weights are those of the checkpoint")

    monkeypatch.setattr("equilibria.run.initialization.set_radius", never)
    seen = []
    monkeypatch.setattr(
        "equilibria.run.loop.conclude",
        lambda trainer, *_: seen.append(dict(trainer.model.state_dict())),
    )
    train(recipe, tmp_path / "broken", console=quiet, resume=True)
    expected = weights(whole)
    assert all(torch.equal(value, expected[name]) for name, value in seen[0].items())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"scale": 1.0, "radius": 0.5}, "exclude each other"),
        ({"radius": 1.0}, "between 0 and 1; got 1.0"),
        ({"radius": 0.0}, "between 0 and 1; got 0.0"),
        ({"scale": -1.0}, "finite and not negative; got -1.0"),
        ({"scale": float("inf")}, "finite and not negative; got inf"),
        ({"ensemble": "gausian"}, "did you mean 'gaussian'?"),
        ({"radios": 0.5}, "did you mean 'initialization.radius'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_what_a_recipe_cannot_ask_for(tree, given, message):
    with pytest.raises(ConfigError, match="initialization") as error:
        recipes.parse({**tree, "initialization": given})
    assert message in str(error.value)


def test_an_explicit_network_has_no_recurrent_weights(tree):
    tree |= {"model": {"name": "resnet"}, "initialization": RADIUS}
    del tree["solver"]
    with pytest.raises(ConfigError, match="initialization"):
        recipes.parse(tree)


def test_an_option_takes_the_scale_away(tree):
    tree["initialization"] = {"ensemble": "goe", "scale": 0.4}
    words = ("--initialization.scale", "null", "--initialization.radius", "0.7")
    begins = recipes.parse(tree, words).initialization
    assert begins.scale is None and begins.radius == 0.7 and begins.ensemble == "goe"
    assert recipes.parse(recipes.dump(recipes.parse(tree, words))).initialization == begins


def test_a_text_is_measured_as_far_as_it_is_solved_at_once(language, make, monkeypatch):
    seen = []

    def stop(model, inputs, **_):
        seen.append(tuple(inputs.shape))
        raise ValueError("seen")

    monkeypatch.setattr("equilibria.run.initialization.set_radius", stop)
    language["model"]["subsequence"] = 3
    language["initialization"] = {"ensemble": "orthogonal", "radius": 0.7}
    with pytest.raises(TrainingError, match=r"initialization\.radius 0\.7: seen"):
        make(tree=language)
    assert seen == [(4, 3)]


def work(rank, tree, place):
    trainer = trainer_of(tree)
    assert trainer.accelerator.num_processes == 2
    torch.save(weight_of(trainer), place / f"{rank}.pt")


def test_two_processes_begin_as_one(tree, make, tmp_path):
    """Each measures the radius on the whole first batch, not on its own part of it."""
    tree["initialization"] = RADIUS
    several(work, 2, tree, tmp_path)
    one = weight_of(make()[0])
    for rank in (0, 1):
        torch.testing.assert_close(torch.load(tmp_path / f"{rank}.pt"), one)
