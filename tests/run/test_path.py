"""Training on random parts of the path: on any equilibrium model, resumed and in micro-batches."""

from __future__ import annotations

import pytest
import torch
from test_resume import EVERY, Killed, break_at, ended_alike, kill

from equilibria.nn.methods import chosen
from equilibria.run import recipe as recipes
from equilibria.run.config import ConfigError
from equilibria.run.loop import fit

PATH = {"name": "RandomPath", "budget": [0, 6], "steps": 2, "noise": 0.5}


@pytest.mark.parametrize(("gradient", "accumulate"), [("phantom", 2), ("unrolled", 1)])
def test_it_is_resumed_bit_for_bit(tree, make, fitted, quiet, weights, gradient, accumulate):
    tree |= {"path": {**PATH, "gradient": gradient}, "accumulate": accumulate}
    trainer, there = fitted("whole", *EVERY, tree=tree)
    whole = weights(trainer), there
    trainer, folder = make("broken", *EVERY, tree=tree)
    break_at(trainer, 5, kill)
    with pytest.raises(Killed):
        fit(trainer, folder, quiet)
    trainer, folder = fitted("broken", *EVERY, new=False, tree=tree)
    ended_alike((weights(trainer), folder), whole)


def step(make, weights, name, tree, *options, steps=3):
    """Take some steps; the weights after them."""
    trainer, _ = make(name, *options, tree=tree)
    for _ in range(steps):
        trainer.train_step()
    return weights(trainer)


def test_micro_batches_have_the_budget_and_the_starts_of_the_whole(make, tree, weights):
    tree["path"] = PATH
    tree["optimizer"] = {"name": "SGD", "lr": 0.5, "momentum": 0.0}
    whole = step(make, weights, "whole", tree)
    parts = step(make, weights, "parts", tree, "--accumulate", "4")
    for name, weight in whole.items():
        torch.testing.assert_close(parts[name], weight, rtol=1e-4, atol=1e-6)


def test_an_exact_gradient_without_noise_is_that_without_a_path(make, tree, weights):
    plain = step(make, weights, "plain", tree)
    alike = {"exact": True, "phantom": False}
    for gradient, same in alike.items():
        path = {**PATH, "gradient": gradient, "noise": 0}
        found = step(make, weights, gradient, {**tree, "path": path})
        assert all(torch.equal(found[name], weight) for name, weight in plain.items()) is same


def test_budgets_differ_from_step_to_step_and_from_seed_to_seed(make, tree):
    tree["path"] = {**PATH, "budget": [0, 1000]}

    def count(name, *options):
        """Evaluations without a gradient, in each of three steps."""
        trainer, _ = make(name, *options, tree=tree)
        (hook,) = (each for each in trainer.hooks if each.name == "path")
        found = []
        for number in range(3):
            with hook.around(number):
                found.append(chosen.get()[trainer.model.deq].solver.max_evals)
        return found

    one, other = count("one"), count("other", "--seed", "1")
    assert len({*one, *other}) == 6 and count("again") == one


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ({"budget": [3, 1]}, "budget must be two increasing numbers"),
        ({"steps": 0}, "steps"),
        ({"noise": 2}, "noise"),
        ({"gradient": "none"}, "gradient"),
    ],
)
def test_an_impossible_path_is_an_error_of_the_recipe(tree, path, message):
    with pytest.raises(ConfigError, match=message):
        recipes.parse({**tree, "path": {"name": "RandomPath", **path}})
