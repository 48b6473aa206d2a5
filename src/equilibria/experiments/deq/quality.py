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

from equilibria.bench.clock import interleaved
from equilibria.experiments import trainings
from equilibria.experiments.case import Case, Place
from equilibria.experiments.training import FOLDER, load
from equilibria.models import EquilibriumModel, Model
from equilibria.solve import Solver, SolveWarning, Status
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
        result: dict[str, Any] = {"threads": torch.get_num_threads(), "turns": TURNS}
        trainers: dict[str, Trainer] = {}
        for stage in ("begin", "end"):
            for name, key in keys.items():
                trainers[name] = trainer_of(place, key, trained=stage == "end")
            result[stage] = stepped(trainers)
        readers = {name: _reader(each.model, each.task, each) for name, each in trainers.items()}
        result["read"] = in_turns(readers)
        return result

    return Case(
        key=time_key(cell),
        description=f"times both {cell} networks, {TURNS} steps each in turns",
        minutes=3,
        run=run,
        settings={"turns": TURNS, "kinds": ["plain", "penalised"]},
        needs=tuple(keys.values()),
    )


def stepped(trainers: Mapping[str, Trainer]) -> dict[str, dict[str, float | None]]:
    """Return what a step of each trainer takes, kind by kind, all kinds of all of them in turns.

    The median of the steps as they are drawn would leave out whichever kind is the rarer.
    """
    calls: dict[str, Callable[[], object]] = {}
    shares: dict[str, float] = {}
    for name, trainer in trainers.items():
        penalty, at = trainer.recipe.regulariser, (trainer.step, trainer.steps)
        shares[name] = 0.0 if penalty is None else penalty.at(*at)[1]
        calls[f"{name} plain"] = _step(trainer, penalised=False)
        if shares[name]:
            calls[f"{name} penalised"] = _step(trainer, penalised=True)
    taken = in_turns(calls)
    found: dict[str, dict[str, float | None]] = {}
    for name, share in shares.items():
        plain, penalised = taken[f"{name} plain"], taken.get(f"{name} penalised")
        found[name] = {
            "plain": plain,
            "penalised": penalised,
            "probability": share,
            "step": (1 - share) * plain + share * (penalised or 0.0),
        }
    return found


def _step(trainer: Trainer, *, penalised: bool) -> Callable[[], object]:
    """A training step for which the penalty is drawn, or is not; as it is where there is none."""
    regulariser = trainer.recipe.regulariser
    if regulariser is None:
        return trainer.train_step
    drawn = replace(regulariser, probability=float(penalised), final_probability=None)
    recipe = replace(trainer.recipe, regulariser=drawn)

    def step() -> None:
        trainer.stabiliser.recipe = recipe
        trainer.train_step()

    return step


def in_turns(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Median milliseconds of each, after a few that warm up."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)  # as in training, where shares are logged
        for call in calls.values():
            for _ in range(WARM):
                call()
        return {name: 1e3 * s for name, s in interleaved(calls, device, turns=TURNS).items()}


def trainer_of(place: Place, key: str, *, trained: bool) -> Trainer:
    """A trainer of the run, new or as it ended, some steps before its end."""
    folder = Folder(place.shared(key) / FOLDER)
    recipe = folder.read_recipe()
    trainer = Trainer(
        recipe, recipe.task.load(place.data_dir), evaluation.accelerator(recipe.precision)
    )
    if trained:
        trainer.restore(load_checkpoint(folder.checkpoint), folder.checkpoint)
        trainer.step = max(0, trainer.steps - 2 * (TURNS + WARM) - 1)  # of either kind
    if recipe.pretrain is not None:
        trainer.step = max(trainer.step, recipe.pretrain.steps)
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
