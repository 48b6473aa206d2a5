"""Training that begins with a shallow network."""

import math

import numpy
import pytest

from equilibria.run import recipe as recipes
from equilibria.run.initialization import ShallowStart
from equilibria.run.start import TrainingError
from equilibria.run.trainer import Trainer
from several import trainer_of

TREE = {
    "task": {"name": "image_classification", "data": "digits"},
    "model": {"name": "dense", "shape": [1, 8, 8], "classes": 10, "width": 8},
}


def test_a_run_that_would_never_solve_is_refused():
    pretrain = {"pretrain": {"name": "ShallowStart", "steps": 84}}
    with pytest.raises(TrainingError, match=r"pretrain\.steps is 84 and the run has 84 steps"):
        trainer_of(TREE | pretrain | {"batch_size": 16, "epochs": 1})  # of 1,347 images


def test_a_share_is_taken_of_the_run_and_never_all_of_it():
    start = ShallowStart(steps=0.2)
    assert [start.count(steps) for steps in (1, 2, 4, 100, 1560)] == [0, 1, 1, 20, 312]
    assert ShallowStart(steps=0.99).count(10) == 9
    assert ShallowStart(steps=150).count(100) == 150


@pytest.mark.parametrize("steps", [0, -1, 1.5, 0.0, math.nan, math.inf])
def test_steps_are_whole_or_a_share(steps):
    with pytest.raises(ValueError, match="whole number of at least 1, or a share"):
        ShallowStart(steps=steps)


def test_the_recipe_for_ones_own_images_trains_on_few_of_them(tmp_path):
    pictures = pytest.importorskip("PIL.Image")
    generator = numpy.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for k in range(40):
            pixels = generator.integers(0, 256, (16, 16, 3), dtype=numpy.uint8)
            pictures.fromarray(pixels).save(tmp_path / label / f"{k}.png")

    def trainer(*options):
        words = ("--task.data", str(tmp_path), *options)
        return trainer_of(recipes.read("mdeq-images"), *words)

    found = trainer("--epoch_steps", "null")  # 72 images make 2 steps of 32, in 8 epochs
    assert 0 < found.shallow_steps < found.steps == 16
    assert trainer("--epoch_steps", "null", "--epochs", "3").shallow_steps < 6
    assert trainer().steps > 100  # by itself, few images are shown more often
    with pytest.raises(TrainingError, match=r"pretrain\.steps is 16 and the run has 16 steps"):
        trainer("--epoch_steps", "null", "--pretrain.steps", "16")
    recipe = recipes.load("mdeq-images", ["--pretrain.steps", "40"])
    assert recipe.pretrain == ShallowStart(layers=3, steps=40)
    assert isinstance(recipe.pretrain.steps, int)
    assert recipes.parse(recipes.dump(recipe)) == recipe  # as a run folder has it


def test_an_extended_run_does_not_begin_again_with_a_shallow_network():
    whole = trainer_of(TREE | {"pretrain": {"name": "ShallowStart", "steps": 0.5}, "epochs": 2})
    again = Trainer(whole.recipe.extend_by(4), whole.task, whole.accelerator)
    assert whole.shallow_steps == again.shallow_steps == 21
