"""Short trainings that leave no run folder, dozens for one figure, and which of them work."""

import itertools
import math
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch

from equilibria import theory
from equilibria.nn.init import Ensemble
from equilibria.nn.using import in_eval_mode
from equilibria.run.evaluation import accelerator
from equilibria.run.models import EquilibriumModel
from equilibria.run.recipe import Recipe
from equilibria.run.report.panel import Series
from equilibria.run.step import Diverged
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.measures.epochs import solves
from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Context
from equilibria.run.studies.views import NOT_RUN, Cell
from equilibria.run.studies.views.tables import Column
from equilibria.run.tally import Tally
from equilibria.run.tasks import Task
from equilibria.run.trainer import Trainer
from equilibria.run.trees import to_device
from equilibria.solve import SolveWarning
from equilibria.zoo.language.task.language import LanguageTask
from papers.initialisation.common import COLORS, PAPER
from papers.measures.sequences import segments


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


@identified_as("_learning.errors_of_seeds")
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


@identified_as("_learning.perplexity")
def perplexity(context: Context, *, count: int) -> Iterable[dict[str, Any]]:
    """Test `perplexity` of a training, infinite where it diverged, and `parameters`.

    On `count` segments of the test text, each at a beginning. Then the training `loss` after each
    epoch, by `step`.
    """
    (recipe,) = context.reads
    task = cast(LanguageTask, context.tasks(recipe))

    def examine(trainer: Trainer) -> dict[str, Any]:
        batch = segments(task, task.config.length, count)
        inputs, targets = to_device((batch.inputs, batch.targets), trainer.accelerator.device)
        with torch.no_grad(), in_eval_mode(trainer.model):
            loss = task.loss(trainer.model, trainer.model(inputs).output, targets)
        sums = {"loss": loss, "units": torch.tensor(task.units(targets))}
        parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
        return {"perplexity": task.figures(sums)["perplexity"], "parameters": parameters}

    found, losses = learn(recipe, task, examine)
    yield {"perplexity": math.inf, **found}
    for epoch, loss in enumerate(losses, start=1):
        yield {"step": epoch * cast(int, recipe.epoch_steps), "loss": loss}


@identified_as("_learning.threshold")
def threshold(context: Context, *, ensembles: Sequence[Ensemble], seeds: int) -> dict[str, float]:
    """Mean and variance of the injection's entries at the start, and what theory makes of them.

    `critical_goe` and so on: the scale from which on plain iteration does not converge.
    """
    (recipe,) = context.reads
    task, entries = context.tasks(recipe), []
    for seed in range(seeds):
        trainer = Trainer(replace(recipe, seed=seed), task, accelerator(recipe.precision))
        with torch.no_grad():
            inputs = to_device(trainer.batch().inputs, trainer.accelerator.device)
            entries += cast(EquilibriumModel, trainer.model).inject(inputs)
    law: dict[str, Any] = {
        "input_mean": statistics.fmean(float(u.mean()) for u in entries),
        "input_variance": statistics.fmean(float(u.var(1).mean()) for u in entries),
    }
    return law | {
        f"critical_{each}": theory.critical_scale("tanh", each, injection="outside", **law)
        for each in ensembles
    }


# --- which work -----------------------------------------------------------------------------------

SHARE = 0.9
"""A scale is workable if so many of its trainings work."""


def compare(data: Data) -> Frame:
    """Add to each test error its `ratio` to the best median, and the `critical` scale by theory."""
    rows = data.series("error")
    best = rows.groupby(["solver", "ensemble", "scale"])["error"].median().min()
    critical = rows["ensemble"].map(_critical(data))
    return rows.assign(ratio=rows["error"] / best, critical=critical)


def _critical(data: Data) -> dict[Ensemble, float]:
    start = data.get(what="start")
    return {} if start is None else {name: start[f"critical_{name}"] for name in PAPER}


def above(factor: float) -> Column:
    """How many trainings end above so many times the best median."""
    return lambda rows: int((rows["ratio"] > factor).sum())


def workable(factor: float) -> Column:
    """Up to which scale, without a gap, trainings end within so many times the best median."""

    def cell(rows: Frame) -> Cell:
        if not rows["done"].all():
            return NOT_RUN
        works = (rows["ratio"] <= factor).groupby(rows["scale"]).mean() >= SHARE
        run = list(itertools.takewhile(works.get, works.index))
        return f"up to {run[-1]:g}" if run else "none"

    return cell


def mark_predictions(solver: str, data: Data) -> list[Series]:
    """Return a short vertical rule at the critical scale of each ensemble that was measured."""
    measured = set(data.series("seed", solver=solver)["ensemble"])
    rule = partial(Series, y=[5, 8], style="marked")
    return [
        rule(label="predicted V*" if name == "gaussian" else "", x=[at, at], color=COLORS[name])
        for name, at in _critical(data).items()
        if name in measured
    ]
