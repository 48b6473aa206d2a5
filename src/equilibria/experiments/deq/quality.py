"""What Tables 1 to 4 need beside the trainings: convergence, gradients, and time side by side."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.experiments import trainings, turns
from equilibria.experiments.case import Case, Place
from equilibria.experiments.training import load
from equilibria.models import EquilibriumModel, Model
from equilibria.solve import Solver, SolveWarning, Status
from equilibria.tasks import Task
from equilibria.train import evaluation
from equilibria.train.examination import examine
from equilibria.train.trainer import Trainer

__all__ = ["TOLERANCE", "quality", "quality_key", "time_key", "times"]

TOLERANCE = 1e-2


def quality_key(key: str) -> str:
    """Return the key of the case that examines the training `key`."""
    return f"quality-{key}"


def quality(key: str) -> Case:
    """Return the case that says how a trained DEQ's test solves end and how right its adjoint is.

    Its value: `evaluation` of the test text at `TOLERANCE`, in which each piece of a segment is a
    solve; `rows`, the share of the rows of its segments all of whose pieces have converged, and the
    `pieces` of the first segment; and the doctor's `cosine` between the recipe's gradient and the
    exact one.
    """

    def run(place: Place) -> Mapping[str, Any]:
        trained = load(place, key)
        accelerator = evaluation.accelerator(trained.recipe.precision)
        model = cast(EquilibriumModel, trained.model.to(accelerator.device))
        usual = model.deq.eval_solver or model.deq.solver
        size = trained.recipe.eval_batch_size
        with _listened(model) as heard:
            result = evaluation.evaluate(
                model,
                trained.data,
                accelerator,
                batch_size=size,
                solver=cast(Solver, replace(cast(Any, usual), rtol=TOLERANCE)),
            )
        asked = [
            (batch.targets >= 0).flatten(1).any(1) for batch in trained.data.batches("test", size)
        ]
        rows = {"converged": converged_rows(heard, asked), "pieces": len(heard[0])}
        model.cpu()  # where the doctor's batch is
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SolveWarning)  # the examination counts them
            found = examine(trained)
        gradient = {"cosine": found.gradient.cosine, "norm_ratio": found.gradient.norm_ratio}
        return {"evaluation": result, "rows": rows, **gradient, "adjoint": found.adjoint}

    return Case(
        key=quality_key(key),
        description=f"reads the test text at {TOLERANCE:g} and examines the gradient of {key}",
        minutes=2,
        run=run,
        settings={"rtol": TOLERANCE},
        needs=(key,),
    )


@contextmanager
def _listened(model: Model) -> Iterator[list[Tensor]]:
    """Collect the statuses (pieces, batch) of each prediction that the model makes meanwhile."""
    heard: list[Tensor] = []

    def listen(_model: Any, _inputs: Any, prediction: Any) -> None:
        heard.append(torch.stack([each.status for each in prediction.solutions]).cpu())

    handle = model.register_forward_hook(listen)
    try:
        yield heard
    finally:
        handle.remove()


def converged_rows(statuses: Sequence[Tensor], asked: Sequence[Tensor]) -> float:
    """Return the share of the rows of all segments all of whose pieces have converged.

    Args:
        statuses: (pieces, batch), of each segment.
        asked: (batch,) bool, the rows of each segment that hold text.
    """
    right = total = 0
    for status, rows in zip(statuses, asked, strict=True):
        whole = (status == Status.CONVERGED).all(0)
        right += int(whole[rows].sum())
        total += int(rows.sum())
    return right / total


def time_key(cell: str) -> str:
    """Return the key of the case that times a cell's networks."""
    return f"time-{cell}"


def times(cell: str) -> Case:
    """Return the case that times the equilibrium network and the weight-tied stack in turns.

    Its value: milliseconds of a training step, `begin` of new networks behind any warm-up and `end`
    of trained ones, and of reading one segment of test text (`read`), by network. A training step
    has medians by kind, `plain` and `penalised` (null where there is no Jacobian penalty), the
    `probability` p of the penalty at that place of the training, and what a step takes on average
    over the draw, `step` = (1 - p) plain + p penalised.
    """
    keys = {"deq": trainings.deq_key(cell, 0), "tied": trainings.tied_key(cell, 0)}

    def run(place: Place) -> Mapping[str, Any]:
        result: dict[str, Any] = {"threads": torch.get_num_threads(), "turns": turns.TURNS}
        trainers: dict[str, Trainer] = {}
        for stage in ("begin", "end"):
            for name, key in keys.items():
                trainers[name] = turns.trainer_of(place, key, trained=stage == "end")
            result[stage] = turns.stepped(trainers)
        readers = {name: _reader(each.model, each.task, each) for name, each in trainers.items()}
        result["read"] = turns.in_turns(readers)
        return result

    return Case(
        key=time_key(cell),
        description=f"times both {cell} networks, {turns.TURNS} steps each in turns",
        minutes=3,
        run=run,
        settings={"turns": turns.TURNS, "kinds": ["plain", "penalised"]},
        needs=tuple(keys.values()),
    )


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
