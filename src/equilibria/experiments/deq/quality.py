"""What Tables 1 to 4 need beside the trainings: convergence, gradients, and time side by side."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import torch

from equilibria.bench.clock import interleaved
from equilibria.experiments import trainings
from equilibria.experiments.case import Case, Place
from equilibria.experiments.training import FOLDER, load
from equilibria.models import EquilibriumModel, Model
from equilibria.solve import Solver, SolveWarning
from equilibria.tasks import Task
from equilibria.train import evaluation
from equilibria.train.checkpoint import load_checkpoint
from equilibria.train.examination import examine
from equilibria.train.run import Folder
from equilibria.train.trainer import Trainer

__all__ = ["TOLERANCE", "quality", "quality_key", "time_key", "times"]

TOLERANCE = 1e-2
TURNS = 15
WARM = 2


def quality_key(key: str) -> str:
    """Return the key of the case that examines the training `key`."""
    return f"quality-{key}"


def quality(key: str) -> Case:
    """Return the case that says how a trained DEQ's test solves end and how right its adjoint is.

    Its value: `evaluation` of the test text at `TOLERANCE`, and the doctor's `cosine` between the
    recipe's gradient and the exact one.
    """

    def run(place: Place) -> Mapping[str, Any]:
        trained = load(place, key)
        accelerator = evaluation.accelerator(trained.recipe.precision)
        model = cast(EquilibriumModel, trained.model.to(accelerator.device))
        usual = model.deq.eval_solver or model.deq.solver
        result = evaluation.evaluate(
            model,
            trained.data,
            accelerator,
            batch_size=trained.recipe.eval_batch_size,
            solver=cast(Solver, replace(cast(Any, usual), rtol=TOLERANCE)),
        )
        model.cpu()  # where the doctor's batch is
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SolveWarning)  # the examination counts them
            found = examine(trained)
        gradient = {"cosine": found.gradient.cosine, "norm_ratio": found.gradient.norm_ratio}
        return {"evaluation": result, **gradient, "adjoint": found.adjoint}

    return Case(
        key=quality_key(key),
        description=f"reads the test text at {TOLERANCE:g} and examines the gradient of {key}",
        minutes=2,
        run=run,
        settings={"rtol": TOLERANCE},
        needs=(key,),
    )


def time_key(cell: str) -> str:
    """Return the key of the case that times a cell's networks."""
    return f"time-{cell}"


def times(cell: str) -> Case:
    """Return the case that times the equilibrium network and the weight-tied stack in turns.

    Its value: median milliseconds of a training step, `begin` of new networks behind any warm-up
    and `end` of trained ones, and of reading one segment of test text (`read`), by network.
    """
    keys = {"deq": trainings.deq_key(cell, 0), "tied": trainings.tied_key(cell, 0)}

    def run(place: Place) -> Mapping[str, Any]:
        result: dict[str, Any] = {"threads": torch.get_num_threads(), "turns": TURNS}
        trainers: dict[str, Trainer] = {}
        for stage in ("begin", "end"):
            for name, key in keys.items():
                trainers[name] = _trainer(place, key, trained=stage == "end")
            result[stage] = _in_turns({name: each.train_step for name, each in trainers.items()})
        readers = {name: _reader(each.model, each.task, each) for name, each in trainers.items()}
        result["read"] = _in_turns(readers)
        return result

    return Case(
        key=time_key(cell),
        description=f"times both {cell} networks, {TURNS} steps each in turns",
        minutes=3,
        run=run,
        settings={"turns": TURNS},
        needs=tuple(keys.values()),
    )


def _in_turns(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Median milliseconds of each, after a few that warm up."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)  # as in training, where shares are logged
        for call in calls.values():
            for _ in range(WARM):
                call()
        return {name: 1e3 * s for name, s in interleaved(calls, device, turns=TURNS).items()}


def _trainer(place: Place, key: str, *, trained: bool) -> Trainer:
    """A trainer of the run, new or as it ended, some steps before its end."""
    folder = Folder(place.shared(key) / FOLDER)
    recipe = folder.read_recipe()
    trainer = Trainer(
        recipe, recipe.task.load(place.data_dir), evaluation.accelerator(recipe.precision)
    )
    if trained:
        trainer.restore(load_checkpoint(folder.checkpoint), folder.checkpoint)
        trainer.step = max(0, trainer.steps - TURNS - WARM - 1)
    elif recipe.pretrain is not None:
        trainer.step = recipe.pretrain.steps
    trainer.carry = None
    return trainer


def _reader(model: Model, task: Task, trainer: Trainer) -> Callable[[], object]:
    """Reads one segment of test text after another, again and again, without gradients."""
    size = trainer.recipe.eval_batch_size
    batches = itertools.chain.from_iterable(task.batches("test", size) for _ in itertools.count())
    carry: Any = None

    def read() -> None:
        nonlocal carry
        batch = evaluation.to_device(next(batches), trainer.accelerator)
        with evaluation.evaluating(model), torch.no_grad():
            prediction = model(batch.inputs, carry=None if batch.begins else carry)
        carry = prediction.carry

    return read
