"""A training run that takes seconds: scikit-learn's digits, a narrow layer, ten steps."""

import copy
import gc
import os
import shutil

import pytest
import texts
import torch
from accelerate import Accelerator
from rich.console import Console

from equilibria.run import recipe as recipes
from equilibria.run.loop import fit
from equilibria.run.run import Folder
from equilibria.run.trainer import Trainer
from equilibria.stability.peak import peak_bytes

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
def _swift():
    """No power is lost, so nothing is flushed to disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def profiler(_swift):
    """What torch imports at its first profile and its first weight norm is no garbage either."""
    import torch._dynamo  # noqa: F401

    peak_bytes(lambda: None)
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


def trainer_of(recipe):
    return Trainer(recipe, recipe.task.load(), Accelerator(cpu=True))


@pytest.fixture
def make(tree, tmp_path):
    """Build a trainer and its folder: make(name, *options) -> (trainer, folder)."""

    def build(name="run", *options, new=True, tree=tree):
        recipe = recipes.parse(tree, options)
        folder = Folder(tmp_path / name)
        trainer = trainer_of(recipe)
        if new:
            folder.create(trainer.recipe)
        return trainer, folder

    return build


@pytest.fixture(scope="session")
def _whole(built_once):
    """The tiny run with checkpoints every three steps, and the weights that it ended with."""

    def fill(place):
        recipe = recipes.parse(copy.deepcopy(TINY), ("--checkpoint.every", "3"))
        trainer, folder = trainer_of(recipe), Folder(place / "whole")
        folder.create(trainer.recipe)
        fit(trainer, folder, Console(quiet=True))
        torch.save(trainer.model.state_dict(), place / "weights.pt")

    return built_once("train-whole", fill)


@pytest.fixture
def whole(_whole, tmp_path):
    """The run that nothing interrupts, in "whole": its weights and its folder, to be changed."""
    shutil.copytree(_whole / "whole", tmp_path / "whole")
    return torch.load(_whole / "weights.pt", weights_only=True), Folder(tmp_path / "whole")


@pytest.fixture
def weights():
    """weights(trainer) -> all parameters and buffers in one dictionary of copies."""
    return lambda trainer: {k: torch.clone(v) for k, v in trainer.model.state_dict().items()}
