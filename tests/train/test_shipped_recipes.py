"""Every shipped recipe starts: it fits its data, its first solves converge, its loss falls."""

import os

import pytest
from accelerate import Accelerator

from equilibria.train import recipe as recipes
from equilibria.train.trainer import Trainer

DOWNLOADED = {"mnist"}


@pytest.mark.parametrize("name", recipes.available())
def test_a_shipped_recipe_starts(name):
    if name in DOWNLOADED and not os.environ.get("EQUILIBRIA_DATA"):
        pytest.skip("EQUILIBRIA_DATA names no folder with data, and tests download nothing")
    recipe = recipes.load(name, ["--schedule.name", "Constant", "--schedule.warmup", "0"])
    trainer = Trainer(recipe, recipe.task.load(), Accelerator(cpu=True))
    losses = []
    for _ in range(12):
        before = trainer.tally.loss
        trainer.train_step()
        losses.append((trainer.tally.loss - before) / recipe.batch_size)
    assert min(losses[6:]) < 0.8 * losses[0]
    summary = trainer.tally.summary()
    assert summary["forward"]["status"]["CONVERGED"] == 1.0
    assert summary["adjoint"]["status"]["CONVERGED"] == 1.0
    assert 0.3 < trainer.radius()["mean"] < 1.0
