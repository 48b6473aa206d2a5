"""Every shipped recipe for signals starts: its first solves converge, its loss falls."""

import functools

import pytest

from applications import recipes_of
from equilibria.run import evaluation
from equilibria.run import recipe as recipes
from starting import CONSTANT, losses, replaced, size, small, trainer_of

SIGNALS = {
    "film": ["--task.size", "24", "--task.frames", "4", "--batch_size", "600"],
    "image": ["--task.size", "24"],
    "shape": [
        *("--batch_size", "500", "--task.test", "100", "--task.near", "0"),
        *("--optimizer.lr", "0.01"),
    ],
    "sound": ["--task.seconds", "0.1"],
}
"""What makes the recipes of signals small enough to take steps here."""


@functools.cache
def described(name):
    """A recipe, and how many parameters its model has."""
    recipe = recipes.load(name)
    return recipe, size(recipe, replaced(recipe, inputs=3, outputs=3, scale=64.0))


def test_the_recipes_that_take_steps_here_are_those_of_small_models():
    assert [*SIGNALS] == small("signal", lambda name: described(name)[1], 1e5)


@pytest.mark.parametrize("name", recipes_of("signal"))
def test_a_shipped_recipe_of_coordinates_builds_its_model(name):
    recipe, parameters = described(name)
    assert recipe.description and parameters > 0


@pytest.mark.data
@pytest.mark.parametrize("name", SIGNALS)
def test_a_shipped_recipe_of_coordinates_starts(name):
    trainer = trainer_of(recipes.load(name, [*CONSTANT, "--model.width", "64", *SIGNALS[name]]))
    found = losses(trainer, 30)
    assert min(found[20:]) < 0.9 * found[0]
    first = evaluation.evaluate(trainer.model, trainer.task, trainer.accelerator)
    assert first["forward"]["status"]["CONVERGED"] > 0.9
