"""A training run that takes seconds: scikit-learn's digits, a narrow layer, ten steps."""

import copy
import gc

import pytest
import texts
import torch
from accelerate import Accelerator
from rich.console import Console

from equilibria.train import recipe as recipes
from equilibria.train.run import Folder
from equilibria.train.trainer import Trainer

TINY = {
    "description": "ten steps on digits",
    "task": {"name": "image_classification", "data": "digits", "shift": 1},
    "model": {"name": "dense", "width": 16},
    "solver": {"name": "Anderson", "rtol": 1e-3, "max_evals": 30},
    "optimiser": {"name": "AdamW", "lr": 0.01},
    "epochs": 2,
    "batch_size": 256,
    "probes": 8,
}


@pytest.fixture(autouse=True, scope="module")
def _modules_are_no_garbage():
    """The collections of garbage before each measurement leave out what is imported."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def tree():
    """The tiny recipe as YAML would give it."""
    return copy.deepcopy(TINY)


@pytest.fixture
def language(tmp_path, monkeypatch):
    """A recipe on a text of its own, as YAML would give it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tree = copy.deepcopy(texts.LANGUAGE)
    tree["task"]["file"] = str(texts.write(tmp_path / "text.txt"))
    return tree


@pytest.fixture
def quiet():
    return Console(quiet=True)


@pytest.fixture
def make(tree, tmp_path):
    """Build a trainer and its folder: make(name, *options) -> (trainer, folder)."""

    def build(name="run", *options, new=True, tree=tree):
        recipe = recipes.parse(tree, options)
        folder = Folder(tmp_path / name)
        trainer = Trainer(recipe, recipe.task.load(), Accelerator(cpu=True))
        if new:
            folder.create(trainer.recipe)
        return trainer, folder

    return build


@pytest.fixture
def weights():
    """weights(trainer) -> all parameters and buffers in one dictionary of copies."""
    return lambda trainer: {k: torch.clone(v) for k, v in trainer.model.state_dict().items()}
