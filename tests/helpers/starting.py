"""The first steps of shipped recipes, and the sizes of their models."""

import dataclasses

import pytest
import torch
from accelerate import Accelerator

from applications import recipes_of
from equilibria.run.data.storage import DataError
from equilibria.run.trainer import Trainer

CONSTANT = ["--schedule.name", "Constant", "--schedule.warmup", "0"]
"""Options without which the first steps would learn little."""


def size(recipe, config=None, *, device="meta"):
    """How many parameters a recipe's model has; it is built on no device."""
    with torch.device(device):
        model = (recipe.model if config is None else config).build(**recipe.layer())
    return sum(p.numel() for p in model.parameters())


def small(application, sizes, most):
    """The recipes of an application whose first steps take seconds."""
    return [name for name in recipes_of(application) if (sizes(name) or most) < most]


def marked(names, dataless=()):
    """The names; those whose data set is neither shipped nor the user's own are marked `data`."""
    return [pytest.param(n, marks=() if n in dataless else pytest.mark.data) for n in names.split()]


def trainer_of(recipe):
    """A trainer on the recipe's data; skips where they lie in none of the folders."""
    try:
        data = recipe.task.load()
    except DataError as error:
        if not any(word in str(error) for word in ("could not download", "not installed")):
            raise
        pytest.skip(str(error))
    return Trainer(recipe, data, Accelerator(cpu=True))


def replaced(recipe, **fields):
    """A recipe's model with what follows from data that are not read here."""
    return dataclasses.replace(recipe.model, **fields)


def losses(trainer, steps):
    """The loss of each of the first steps."""
    found = []
    for _ in range(steps):
        before = dict(trainer.tally.sums)
        trainer.train_step()
        loss, units = (
            float(trainer.tally.sums[name] - before.get(name, 0)) for name in ("loss", "units")
        )
        found.append(loss / units)
    return found
