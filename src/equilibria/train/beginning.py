"""A new model as its recipe has it begin."""

from __future__ import annotations

from accelerate import Accelerator

from equilibria.models import Model
from equilibria.tasks import Task
from equilibria.train.evaluation import to_device
from equilibria.train.initialisation import Beginning
from equilibria.train.recipe import Recipe

__all__ = ["begin"]


def begin(recipe: Recipe, task: Task, model: Model, accelerator: Accelerator) -> Beginning | None:
    """Fill the recurrent weights of a new model as its recipe says, before training.

    All processes do the same: they have the same weights and look at the whole first batch.

    Args:
        recipe: whose `initialisation` it is.
        task: that of the recipe, whose first batch a radius is measured on.
        model: changed in place; a radius takes it to the accelerator's device.
        accelerator: of the training.

    Returns:
        What they were set to; None where the recipe says nothing.

    Raises:
        ValueError: see `Initialisation.apply`.
    """
    asked = recipe.initialisation
    if asked is None:
        return None
    if asked.radius is None:
        return asked.apply(model)
    batch = task.feed(recipe.batch_size, recipe.seed).batch(0)
    return asked.apply(model, to_device(batch.inputs, accelerator))
