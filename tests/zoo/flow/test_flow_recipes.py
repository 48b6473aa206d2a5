"""Every shipped recipe for optical flow starts: its loss falls."""

import functools

import pytest

from applications import recipes_of
from equilibria.run import recipe as recipes
from starting import CONSTANT, losses, size, small, trainer_of

STARTED = "flow-layers flow-layers-raft"


@functools.cache
def described(name):
    """A recipe, and how many parameters its model has."""
    recipe = recipes.load(name)
    return recipe, size(recipe)


def test_the_recipes_that_take_steps_here_are_those_of_small_models():
    assert STARTED.split() == small("flow", lambda name: described(name)[1], 1e6)


@pytest.mark.parametrize("name", recipes_of("flow"))
def test_a_shipped_recipe_of_flow_builds_its_model(name):
    recipe, parameters = described(name)
    assert recipe.description and parameters > 0


@pytest.mark.parametrize("name", STARTED.split())
def test_a_shipped_recipe_of_flow_starts(name):
    options = [*CONSTANT, "--batch_size", "2", "--task.size", "[64, 64]"]
    trainer = trainer_of(recipes.load(name, [*options, "--task.samples", "2", "--task.test", "1"]))
    found = losses(trainer, 8)  # the same two pairs each time
    assert min(found[4:]) < 0.8 * found[0]
