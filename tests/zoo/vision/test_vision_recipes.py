"""Every shipped recipe for images starts: its first solves converge, its loss falls."""

import dataclasses
import functools

import pytest

from applications import recipes_of
from equilibria.run import recipe as recipes
from equilibria.zoo.vision.model.config import VisionConfig
from starting import CONSTANT, losses, marked, replaced, size, small, trainer_of

STARTED = "digits digits-jr mnist mnist-dense mnist-dense-gpu"
PICTURES = "mdeq-cifar10-16 mdeq-mnist-16 shapes"
"""Of networks of vision; written down, since asking for the size of every model is slow."""


@functools.cache
def described(name):
    """A recipe, and how many parameters its model has."""
    recipe = recipes.load(name)
    if not isinstance(recipe.model, VisionConfig):
        return recipe, size(recipe, device="cpu")
    more = {"shape": (3, 64, 64), "classes": 10} if recipe.model.shape is None else {}
    return recipe, size(recipe, replaced(recipe, **more))


def is_vision(name):
    return isinstance(described(name)[0].model, VisionConfig)


def test_the_recipes_that_take_steps_here_are_those_of_small_models():
    found = small("vision", lambda name: described(name)[1] if is_vision(name) else None, 1e5)
    assert PICTURES.split() == found
    assert STARTED.split() == [name for name in recipes_of("vision") if not is_vision(name)]


@pytest.mark.parametrize("name", recipes_of("vision"))
def test_a_shipped_recipe_of_images_builds_its_model(name):
    recipe, parameters = described(name)
    assert recipe.description and parameters > 0


@pytest.mark.parametrize("name", marked(STARTED, {"digits", "digits-jr"}))
def test_a_shipped_recipe_of_images_starts(name):
    trainer = trainer_of(recipes.load(name, CONSTANT))
    found = losses(trainer, 10)
    assert min(found[5:]) < 0.8 * found[0]
    summary = trainer.tally.summary(trainer.task)
    assert summary["forward"]["status"]["CONVERGED"] == 1.0
    assert summary["adjoint"]["status"]["CONVERGED"] == 1.0
    assert 0.3 < trainer.radius()["mean"] < 1.0


@pytest.mark.data
@pytest.mark.parametrize("name", PICTURES.split())
def test_a_shipped_recipe_of_pictures_starts(name):
    recipe = recipes.load(name, [*CONSTANT, "--task.samples", "40"])
    trainer = trainer_of(dataclasses.replace(recipe, pretrain=None))
    found = losses(trainer, 30)  # a batch of 32 of the same 40 pictures each time
    assert min(found[20:]) < 0.9 * found[0]
    summary = trainer.tally.summary(trainer.task)
    assert summary["forward"]["status"]["CONVERGED"] > 0.5
    # Phantom gradients solve nothing backward.
    solved = summary["adjoint"]["status"] or {"CONVERGED": 1.0}
    assert solved["CONVERGED"] > 0.5
