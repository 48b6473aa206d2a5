"""Shipped recipes of reasoning build their models, and start."""

import functools

import pytest

from applications import recipes_of
from equilibria.run import recipe as recipes
from equilibria.run.config import ConfigError
from equilibria.run.models.base import ExplicitConfig
from starting import CONSTANT, losses, trainer_of


def small(name):
    """Options with which few instances are generated."""
    puzzles = ["--task.puzzles", "50"] if name.startswith("sudoku") else []
    return ["--task.test", "8", "--batch_size", "16", *puzzles]


@functools.cache
def described(name):
    return recipes.load(name, small(name))


@pytest.mark.parametrize("name", recipes_of("reasoning"))
def test_a_shipped_recipe_of_reasoning_builds_its_model(name):
    recipe = described(name)
    task = recipe.task.load()
    model = task.complete(recipe.model).build(**recipe.layer())
    assert recipe.description
    assert 0 < sum(p.numel() for p in model.parameters()) < 1e6
    assert recipe.path is not None or isinstance(recipe.model, ExplicitConfig)
    assert recipe.drop_finished


@pytest.mark.parametrize("name", recipes_of("reasoning"))
def test_a_shipped_recipe_of_reasoning_starts(name):
    words = [*CONSTANT, *small(name), "--optimizer.lr", "0.003"]
    if described(name).path is not None:
        words += ["--path.budget", "[0, 3]", "--path.steps", "2"]
    found = losses(trainer_of(recipes.load(name, words)), 10)
    assert min(found[5:]) < found[0]


@pytest.mark.parametrize("name", ["fixed-depth", "sequence-lstm"])
def test_a_network_with_nothing_to_solve_is_chosen_by_options(name: str) -> None:
    with pytest.raises(ConfigError, match="unset it: ") as refused:
        recipes.load("parity", ["--model.name", name])
    advice = str(refused.value).partition("unset it: ")[2].rstrip(")").split()
    recipe = recipes.load("parity", ["--model.name", name, *advice])
    assert not recipe.model.implicit and not recipe.drop_finished


def test_attention_is_not_tested_on_larger_instances() -> None:
    recipe = recipes.load("parity", ["--model.cell", "attention"])
    with pytest.raises(ValueError, match=r"set --task\.larger '\[\]'"):
        recipe.task.load().complete(recipe.model)
    alone = recipes.load("parity", ["--model.cell", "attention", "--task.larger", "[]"])
    assert alone.task.load().complete(alone.model).shape == (1, 16)
