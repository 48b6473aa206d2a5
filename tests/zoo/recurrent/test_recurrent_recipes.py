"""Shipped recipes for sequences build their models, and start."""

import pytest

from applications import recipes_of
from equilibria.run import recipe as recipes
from starting import CONSTANT, losses, replaced, size, trainer_of


@pytest.mark.parametrize("name", recipes_of("recurrent"))
def test_a_shipped_recipe_of_sequences_with_a_class_builds_its_model(name):
    recipe = recipes.load(name)
    assert recipe.description and size(recipe, replaced(recipe, shape=(9,), classes=2)) > 0


@pytest.mark.parametrize("name", [pytest.param("har2", marks=pytest.mark.data)])
def test_a_shipped_recipe_of_sensors_starts(name):
    trainer = trainer_of(recipes.load(name, CONSTANT))
    found = losses(trainer, 10)
    assert all(loss < 10 for loss in found) and min(found[5:]) < found[0]
