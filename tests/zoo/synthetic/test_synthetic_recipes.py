"""Shipped recipes for problems that are drawn build their models, and start."""

import functools

import pytest

from applications import recipes_of
from equilibria.run import recipe as recipes
from starting import CONSTANT, losses, replaced, size, trainer_of

COPYING = "copy-memory"
SIGNALS = ["adding", "order"]


@functools.cache
def described(name):
    """A recipe, and how many parameters its model has."""
    recipe = recipes.load(name)
    known = {"vocabulary": 100} if name == COPYING else {"shape": (9,), "classes": 2}
    return recipe, size(recipe, replaced(recipe, **known))


def test_all_take_steps_here():
    assert recipes_of("synthetic") == sorted([COPYING, *SIGNALS])


@pytest.mark.parametrize("name", recipes_of("synthetic"))
def test_a_shipped_recipe_of_a_drawn_problem_builds_its_model(name):
    recipe, parameters = described(name)
    assert recipe.description and 0 < parameters < 4e6


@pytest.mark.parametrize("name", SIGNALS)
def test_a_shipped_recipe_of_a_drawn_problem_starts(name):
    found = losses(trainer_of(recipes.load(name, CONSTANT)), 10)
    assert all(loss < 10 for loss in found) and min(found[5:]) < found[0]


def test_the_shipped_recipe_of_copying_starts():
    trainer = trainer_of(recipes.load(COPYING, [*CONSTANT, "--batch_size", "2"]))
    found = losses(trainer, 10)
    assert min(found[5:]) < 0.9 * found[0]
    summary = trainer.tally.summary(trainer.task)
    assert summary["forward"]["status"]["CONVERGED"] > 0.9
    assert summary["adjoint"]["status"]["CONVERGED"] > 0.9
