"""Every shipped recipe for graphs starts: its first solves converge, its loss falls."""

import functools

import pytest
from small_graphs import two_rings, write_molecules

from applications import recipes_of
from equilibria.run import recipe as recipes
from equilibria.zoo.graph.task.whole_graphs import GraphClassification
from starting import CONSTANT, losses, marked, replaced, size, small, trainer_of

STARTED = "chains cora cox2 graphs nodes proteins"
DATALESS = {"chains", "graphs", "nodes"}
"""Of those: the data are drawn or the user's own."""


@functools.cache
def described(name):
    """A recipe, and how many parameters its model has."""
    recipe = recipes.load(name)
    level = "graph" if isinstance(recipe.task, GraphClassification) else "node"
    return recipe, size(recipe, replaced(recipe, shape=(50,), classes=121, level=level))


def test_the_recipes_that_take_steps_here_are_those_of_small_models():
    assert STARTED.split() == small("graph", lambda name: described(name)[1], 1e5)
    tasks = {name: described(name)[0].task for name in STARTED.split()}
    own = {name for name, task in tasks.items() if getattr(task, "data", None) is None}
    assert own == DATALESS


@pytest.mark.parametrize("name", recipes_of("graph"))
def test_a_shipped_recipe_of_graphs_builds_its_model(name):
    recipe, parameters = described(name)
    assert recipe.description and parameters > 0


@pytest.mark.parametrize("name", marked(STARTED, DATALESS))
def test_a_shipped_recipe_of_graphs_starts(name, tmp_path):
    own = {"nodes": two_rings, "graphs": lambda path: write_molecules(path.with_suffix(""))}
    options = [*CONSTANT]
    if name in own:
        options += ["--task.data", str(own[name](tmp_path / "mine.npz"))]
    trainer = trainer_of(recipes.load(name, options))
    found = losses(trainer, 6)
    assert min(found[3:]) < found[0]
    summary = trainer.tally.summary(trainer.task)
    assert summary["forward"]["status"]["CONVERGED"] > 0.98
    assert summary["adjoint"]["status"]["CONVERGED"] > 0.98
