"""Training that begins with a shallow network."""

import pytest
from accelerate import Accelerator

from equilibria.train import recipe as recipes
from equilibria.train.trainer import Trainer, TrainingError


def test_a_run_that_would_never_solve_is_refused() -> None:
    tree = {
        "task": {"name": "image_classification", "data": "digits"},
        "model": {"name": "dense", "shape": [1, 8, 8], "classes": 10, "width": 8},
        "pretrain": {"name": "ShallowStart", "steps": 84},
        "batch_size": 16,
        "epochs": 1,
    }
    recipe = recipes.parse(tree)  # 1,347 images make 84 steps of 16
    with pytest.raises(TrainingError, match=r"pretrain\.steps is 84 and the run has 84 steps"):
        Trainer(recipe, recipe.task.load(), Accelerator(cpu=True))
