"""A training run that takes seconds: scikit-learn's digits, a narrow layer, ten steps.

And a trained run that commands are tried on. All tests load this, those of the core too:
what takes long to import is imported where it is used.
"""

import copy
import gc
import os
import shutil
from pathlib import Path

import pytest

TINY = {
    "description": "ten steps on digits",
    "task": {"name": "image_classification", "data": "digits", "shift": 1},
    "model": {"name": "dense", "width": 16},
    "solver": {"name": "Anderson", "rtol": 1e-3, "max_evals": 30},
    "optimizer": {"name": "AdamW", "lr": 0.01},
    "epochs": 2,
    "batch_size": 256,
    "probes": 8,
}


@pytest.fixture(scope="module")
def unflushed():
    """No power is lost, so nothing is flushed to disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def profiler(unflushed):
    """What torch imports at its first profile and its first weight norm is no garbage either."""
    import torch._dynamo  # noqa: F401

    from equilibria.stability.examined import peak_bytes

    peak_bytes(lambda: None)
    gc.freeze()


@pytest.fixture
def tree():
    """The tiny recipe as YAML would give it."""
    return copy.deepcopy(TINY)


@pytest.fixture
def language(tmp_path, monkeypatch):
    """A recipe on a text of its own, as YAML would give it."""
    import texts

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tree = copy.deepcopy(texts.LANGUAGE)
    tree["task"]["file"] = str(texts.write(tmp_path / "text.txt"))
    return tree


@pytest.fixture
def quiet():
    from rich.console import Console

    return Console(quiet=True)


def trainer_of(recipe):
    from accelerate import Accelerator

    from equilibria.run.trainer import Trainer

    return Trainer(recipe, recipe.task.load(), Accelerator(cpu=True))


@pytest.fixture
def make(tree, tmp_path):
    """Build a trainer and its folder: make(name, *options) -> (trainer, folder)."""
    from equilibria.run import recipe as recipes
    from equilibria.run.run import Folder

    def build(name="run", *options, new=True, tree=tree):
        recipe = recipes.parse(tree, options)
        folder = Folder(tmp_path / name)
        trainer = trainer_of(recipe)
        if new:
            folder.create(trainer.recipe)
        return trainer, folder

    return build


@pytest.fixture
def fitted(make, quiet):
    """Train to the end, a run that is not new from where it stopped: as `make`."""
    from equilibria.run.loop import fit

    def run(*given, new=True, **options):
        trainer, folder = make(*given, new=new, **options)
        fit(trainer, folder, quiet, resume=not new)
        return trainer, folder

    return run


@pytest.fixture(scope="session")
def _whole(built_once):
    """The tiny run with checkpoints every three steps, and the weights that it ended with."""
    import torch
    from rich.console import Console

    from equilibria.run import recipe as recipes
    from equilibria.run.loop import fit
    from equilibria.run.run import Folder

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
    import torch

    from equilibria.run.run import Folder

    shutil.copytree(_whole / "whole", tmp_path / "whole")
    return torch.load(_whole / "weights.pt", weights_only=True), Folder(tmp_path / "whole")


@pytest.fixture
def weights():
    """weights(trainer) -> all parameters and buffers in one dictionary of copies."""
    import torch

    return lambda trainer: {k: torch.clone(v) for k, v in trainer.model.state_dict().items()}


@pytest.fixture(scope="session")
def digits_run(built_once) -> Path:
    """A folder with the run `digits`, trained as `tiny_run` says; only to be read."""
    import tiny_run

    return built_once("cli-digits", lambda folder: tiny_run.train(folder / "digits")) / "digits"


@pytest.fixture(scope="session")
def parity_run(built_once) -> Path:
    """A folder with a hundred steps on parities of 4 bits, which it learns; only to be read."""
    import applications
    from equilibria.run.cli.main import main

    if not applications.present("reasoning"):
        pytest.skip("needs reasoning of the zoo")
    options = {
        "epochs": 1,
        "batch_size": 32,
        "task.size": 4,
        "task.larger": [8],
        "task.test": 40,
        "task.epoch": 3200,
        "model.width": 16,
        "solver.max_evals": 40,
        "path.budget": [0, 6],
        "path.steps": 4,
        "optimizer.lr": 0.01,
    }
    words = [word for key, value in options.items() for word in (f"--{key}", str(value))]

    def fill(folder):
        assert main(["train", "parity", "--out", str(folder / "parity"), "--quiet", *words]) == 0

    return built_once("cli-parity", fill) / "parity"


@pytest.fixture(scope="module")
def shallow():
    """The memory of a step is measured at two depths: at five it takes several seconds."""
    from equilibria.run import memory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "DEPTHS", (2, 4))
        patch.setattr(memory, "LONG", (2, 4))
        yield
