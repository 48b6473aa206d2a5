"""Every shipped recipe for texts starts: its first solves converge, its loss falls."""

import dataclasses
import functools

import pytest

import texts
from applications import recipes_of
from equilibria.run import recipe as recipes
from equilibria.zoo.language.task.language import LanguageModeling
from starting import CONSTANT, losses, marked, replaced, size, small, trainer_of

CORPORA = {"ptb": 10_000, "wikitext2": 33_278, "wikitext103": 267_735}
"""Tokens of the vocabularies, for recipes whose data are not read here."""

STARTED = "lm-ptb lm-ptb-characters lm-ptb-ernn lm-ptb-trellisnet lm-text"
DATALESS = {"lm-text"}
"""Of those: the data are drawn or the user's own."""


@functools.cache
def described(name):
    """A recipe, and how many parameters its model has."""
    recipe = recipes.load(name)
    if recipe.model.vocabulary is not None:
        return recipe, size(recipe)
    data = getattr(recipe.task, "data", None)
    return recipe, size(recipe, replaced(recipe, vocabulary=CORPORA.get(data, 100)))


def test_the_recipes_that_take_steps_here_are_those_of_small_models():
    assert STARTED.split() == small("language", lambda name: described(name)[1], 4e6)
    tasks = {name: described(name)[0].task for name in STARTED.split()}
    own = {name for name, task in tasks.items() if getattr(task, "data", None) is None}
    assert own == DATALESS


@pytest.mark.parametrize("name", recipes_of("language"))
def test_a_shipped_recipe_of_sequences_builds_its_model(name):
    recipe, parameters = described(name)
    assert recipe.description and parameters > 0


@pytest.mark.parametrize("name", marked(STARTED, DATALESS))
def test_a_shipped_recipe_of_sequences_starts(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task = recipes.load(name).task
    options = [*CONSTANT, "--batch_size", "2"]
    if isinstance(task, LanguageModeling) and task.data is None:
        options += ["--task.file", str(texts.write(tmp_path / "text.txt", sentences=400))]
    recipe = recipes.load(name, options)
    trainer = trainer_of(dataclasses.replace(recipe, pretrain=None))
    found = losses(trainer, 10)
    assert min(found[5:]) < 0.9 * found[0]
    if recipe.model.implicit:
        summary = trainer.tally.summary(trainer.task)
        assert summary["forward"]["status"]["CONVERGED"] > 0.9
        assert summary["adjoint"]["status"]["CONVERGED"] > 0.9
