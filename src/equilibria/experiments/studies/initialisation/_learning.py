"""Measures of short trainings that leave no run folder: dozens belong to one figure."""

from __future__ import annotations

import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from equilibria import theory
from equilibria.experiments.measures.epochs import solves
from equilibria.experiments.measures.sequences import segments
from equilibria.experiments.study import Context
from equilibria.models import EquilibriumModel
from equilibria.nn.init import Ensemble
from equilibria.solve import SolveWarning
from equilibria.tasks import Task
from equilibria.tasks.language import LanguageTask
from equilibria.train.evaluation import accelerator, evaluating, to_device
from equilibria.train.recipe import Recipe
from equilibria.train.tally import Tally
from equilibria.train.trainer import Diverged, Trainer

__all__ = ["errors_of_seeds", "learn", "perplexity", "threshold"]


def learn(
    recipe: Recipe, task: Task, examine: Callable[[Trainer], Mapping[str, Any]]
) -> tuple[dict[str, Any], list[float]]:
    """Train as a recipe says; return figures, and the mean training loss of each epoch.

    The figures are what `examine` returns of a training that did not diverge; `diverged`, the
    message of one that did; and the shares `forward_converged` and `adjoint_converged` of the
    solves of the last finished epoch.
    """
    trainer = Trainer(recipe, task, accelerator(recipe.precision))
    epochs: list[dict[str, Any]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)  # counted instead
        try:
            while trainer.step < trainer.steps:
                trainer.train_step()
                if trainer.step % trainer.steps_per_epoch == 0:
                    epochs.append(trainer.tally.summary(task))
                    trainer.tally = Tally()
            found: dict[str, Any] = {**examine(trainer), "diverged": None}
        except Diverged as error:
            found = {"diverged": str(error)}
    last = epochs[-1] if epochs else {}
    for name in ("forward", "adjoint"):
        found[f"{name}_converged"] = solves(last.get(name)).get("converged")
    return found, [epoch["loss"] for epoch in epochs]


def errors_of_seeds(context: Context, *, seeds: int) -> Iterable[dict[str, Any]]:
    """For each `seed` the test `error`, 1 where the training diverged, and its solves."""
    (recipe,) = context.reads
    for seed in range(seeds):
        found, _ = learn(
            replace(recipe, seed=seed),
            context.tasks(recipe),
            lambda trainer: {"error": 1 - trainer.evaluate("test")["accuracy"]},
        )
        yield {"seed": seed, "error": 1.0, **found}


def perplexity(context: Context, *, count: int) -> Iterable[dict[str, Any]]:
    """Test `perplexity` of a training, infinite where it diverged, and `parameters`.

    On `count` segments of the test text, each at a beginning. Then the training `loss` after each
    epoch, by `step`.
    """
    (recipe,) = context.reads
    task = cast(LanguageTask, context.tasks(recipe))

    def examine(trainer: Trainer) -> dict[str, Any]:
        batch = segments(task, task.config.length, count)
        inputs, targets = to_device((batch.inputs, batch.targets), trainer.accelerator)
        with torch.no_grad(), evaluating(trainer.model):
            loss = task.loss(trainer.model, trainer.model(inputs).output, targets)
        sums = {"loss": loss, "units": torch.tensor(task.units(targets))}
        parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
        return {"perplexity": task.figures(sums)["perplexity"], "parameters": parameters}

    found, losses = learn(recipe, task, examine)
    yield {"perplexity": math.inf, **found}
    for epoch, loss in enumerate(losses, start=1):
        yield {"step": epoch * cast(int, recipe.epoch_steps), "loss": loss}


def threshold(context: Context, *, ensembles: Sequence[Ensemble], seeds: int) -> dict[str, float]:
    """Mean and variance of the injection's entries at the start, and what theory makes of them.

    `critical_goe` and so on: the scale from which on plain iteration does not converge.
    """
    (recipe,) = context.reads
    task, entries = context.tasks(recipe), []
    for seed in range(seeds):
        trainer = Trainer(replace(recipe, seed=seed), task, accelerator(recipe.precision))
        with torch.no_grad():
            entries += cast(EquilibriumModel, trainer.model).inject(trainer.batch().inputs)
    law: dict[str, Any] = {
        "input_mean": statistics.fmean(float(u.mean()) for u in entries),
        "input_variance": statistics.fmean(float(u.var(1).mean()) for u in entries),
    }
    return law | {
        f"critical_{each}": theory.critical_scale("tanh", each, injection="outside", **law)
        for each in ensembles
    }
