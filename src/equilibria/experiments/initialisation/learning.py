"""A short training from a seed, without a run folder: what it learns, or where it breaks."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from equilibria.solve import SolveWarning
from equilibria.tasks import Task
from equilibria.train.evaluation import accelerator
from equilibria.train.recipe import Recipe
from equilibria.train.step import Diverged
from equilibria.train.tally import Tally
from equilibria.train.trainer import Trainer

__all__ = ["learn"]


def learn(recipe: Recipe, task: Task, examine: Callable[[Trainer], Any]) -> dict[str, Any]:
    """Train as a recipe says and examine what has come of it.

    Args:
        recipe: what to do.
        task: its task, loaded.
        examine: measures the trained model.

    Returns:
        `losses`, the mean training loss of each epoch; `forward` and `adjoint`, how the solves of
        the last epoch ended; `result`, what `examine` returns; `diverged`, the message where the
        loss or a gradient stopped being finite, and then there is no result.
    """
    trainer = Trainer(recipe, task, accelerator(recipe.precision))
    losses: list[float] = []
    summary: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)  # counted instead
        try:
            while trainer.step < trainer.steps:
                trainer.train_step()
                if trainer.step % trainer.steps_per_epoch == 0:
                    summary = trainer.tally.summary(task.figures)
                    losses.append(summary["loss"])
                    trainer.tally = Tally()
        except Diverged as error:
            return {"losses": losses, **_solves(summary), "result": None, "diverged": str(error)}
        result = examine(trainer)
    return {"losses": losses, **_solves(summary), "result": result, "diverged": None}


def _solves(summary: dict[str, Any]) -> dict[str, Any]:
    return {name: summary.get(name) for name in ("forward", "adjoint")}
