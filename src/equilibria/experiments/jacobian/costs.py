"""What networks with and without the penalty reach when stopped early, and what they cost."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.experiments import measure, turns
from equilibria.experiments.case import Case, Place
from equilibria.experiments.jacobian import images
from equilibria.experiments.training import diverged, load
from equilibria.models import EquilibriumModel, Model
from equilibria.solve import Broyden, Picard, Solver, SolveWarning
from equilibria.stability import jacobian_penalty
from equilibria.tasks import Batch, Task
from equilibria.train import evaluation, memory
from equilibria.train.trainer import Trainer

__all__ = [
    "LIMITS",
    "MEMORY",
    "READERS",
    "inference_bytes",
    "memories",
    "step_bytes",
    "stopped",
    "stopped_key",
    "times",
    "times_key",
]

LIMITS = (1, 2, 3, 4, 5, 6, images.LIMIT)
"""Evaluations after which solves are stopped, as in Table 3, and those of training without the
penalty."""

MEMORY = "images-memory"

READERS: Mapping[str, tuple[str, int]] = {
    "plain": ("plain", images.LIMIT),
    "stopped": ("plain", images.THIRD),
    "regularised": (images.regularised(images.BEST), images.THIRD),
}
"""Who reads test images, and after how many evaluations a solve is stopped."""


def stopped_key(key: str) -> str:
    """Return the key of the case that stops the solves of a training early."""
    return f"stopped-{key}"


def stopped(name: str, seed: int) -> Case:
    """Return the case that takes the accuracy of a training at each of `LIMITS`.

    Its value: what `evaluation.evaluate` says of the test images, and seconds a sample, by limit;
    of a training that diverged only the message, `diverged`.
    """
    key = images.key(name, seed)
    return Case(
        key=stopped_key(key),
        description=f"reads the test images with solves of {key} stopped at {LIMITS}",
        minutes=3,
        run=partial(_stopped, key),
        settings={"limits": LIMITS},
        needs=(key,),
    )


def _stopped(key: str, place: Place) -> Mapping[str, Any]:
    if (message := diverged(place, key)) is not None:
        return {"diverged": message}
    trained = load(place, key)
    accelerator = evaluation.accelerator(trained.recipe.precision)
    model = cast(EquilibriumModel, trained.model.to(accelerator.device))
    found: dict[str, Any] = {}
    for limit in LIMITS:
        result, seconds = evaluation.timed(
            model,
            trained.data,
            accelerator,
            batch_size=trained.recipe.eval_batch_size,
            solver=_limited(model, limit),
        )
        found[str(limit)] = {**result, "seconds": seconds}
    return found


def _limited(model: EquilibriumModel, limit: int) -> Solver:
    return cast(Solver, replace(cast(Any, model.deq.solver), max_evals=limit))


# --- time ----------------------------------------------------------------------------------------


def _needs(seed: int = 0) -> dict[str, str]:
    """Keys of the trainings that are compared, by the name of who reads."""
    keys = {reader: images.key(name, seed) for reader, (name, _) in READERS.items()}
    return {**keys, "resnet": images.resnet_key()}


def times_key(seed: int) -> str:
    """Return the key of the case that times the networks of a seed."""
    return f"images-turns-{seed}"


def times(seed: int) -> Case:
    """Return the case that times the trained networks of a seed side by side.

    Its value: milliseconds of a training step (`steps`, as `turns.stepped` gives it) of the
    network without the penalty, with it and of the ResNet; and of reading a batch of test images
    (`read`), by the names of `READERS` and "resnet".
    """
    return Case(
        key=times_key(seed),
        description=f"times steps and readings of the networks of seed {seed} in turns",
        minutes=3,
        run=partial(_timed, seed),
        settings={"turns": turns.TURNS, "readers": READERS},
        needs=tuple(dict.fromkeys(_needs(seed).values())),
    )


def _timed(seed: int, place: Place) -> Mapping[str, Any]:
    keys = _needs(seed)
    trainers = {
        name: turns.trainer_of(place, keys[name], trained=True)
        for name in ("plain", "regularised", "resnet")
    }
    steps = turns.stepped(trainers)
    readers: dict[str, Callable[[], object]] = {}
    for reader in (*READERS, "resnet"):
        trainer = trainers["plain" if reader == "stopped" else reader]
        limit = READERS[reader][1] if reader in READERS else None
        readers[reader] = _reader(trainer, limit)
    return {
        "threads": torch.get_num_threads(),
        "steps": steps,
        "read": turns.in_turns(readers),
        "batch": trainers["plain"].recipe.eval_batch_size,
    }


def _reader(trainer: Trainer, limit: int | None) -> Callable[[], object]:
    """Reads one batch of test images after another, again and again, without gradients."""
    task, model = trainer.task, trainer.model
    size = trainer.recipe.eval_batch_size
    batches = itertools.chain.from_iterable(task.batches("test", size) for _ in itertools.count())
    solver = None if limit is None else _limited(cast(EquilibriumModel, model), limit)

    def read() -> None:
        batch = evaluation.to_device(next(batches), trainer.accelerator)
        with (
            evaluation.evaluating(model, solver),
            torch.no_grad(),
            trainer.accelerator.autocast(),
        ):
            model(batch.inputs)

    return read


# --- memory --------------------------------------------------------------------------------------


def memories() -> Case:
    """Return the case that measures the memory of training steps and of inference.

    Its value: bytes of a training step (`step`) of the network without the penalty, with it
    (`regularised`, and `penalised` where the penalty is drawn) and of the ResNet; of inference
    (`inference`) by the names of `READERS` and, in each, by solver: `recipe`, its own; `broyden`,
    all of whose steps are kept, the papers'; and `none`, plain iteration, which has no history.
    All in float32, whatever precision the trainings have.
    """
    return Case(
        key=MEMORY,
        description="measures the memory of training steps and of inference, by solver",
        minutes=3,
        run=_measured,
        settings={"readers": READERS, "broyden": measure.described(Broyden())},
        needs=tuple(dict.fromkeys(_needs().values())),
    )


def _measured(place: Place) -> Mapping[str, Any]:
    keys = _needs()
    step: dict[str, int] = {}
    inference: dict[str, dict[str, int]] = {}
    sizes: dict[str, int] = {}
    for reader, key in keys.items():
        trained = load(place, key)
        device = evaluation.accelerator(trained.recipe.precision).device
        model, task = trained.model.to(device), trained.data
        if reader != "stopped":
            batch = task.feed(trained.recipe.batch_size, trained.recipe.seed).batch(0)
            step[reader] = step_bytes(model, task, batch)
            if reader == "regularised":
                step["penalised"] = step_bytes(model, task, batch, penalised=True)
        if reader not in READERS:
            continue
        inputs = task.sample("test", trained.recipe.eval_batch_size).inputs
        inference[reader] = inference_bytes(
            cast(EquilibriumModel, model), inputs.to(device), READERS[reader][1]
        )
        sizes[reader] = len(inputs)
    return {"step": step, "inference": inference, "samples": sizes}


def step_bytes(model: Model, task: Task, batch: Batch, *, penalised: bool = False) -> int:
    """Return the peak of forward and backward less parameters and gradients, in bytes.

    In float32, without autocast. The solves are the model's own, with the limits and tolerances
    of its training.

    Args:
        model: it is copied.
        task: gives the loss.
        batch: of training.
        penalised: with the Jacobian penalty.
    """
    twin = copy.deepcopy(model).train()
    device = next(twin.parameters()).device
    inputs, targets = batch.inputs.to(device), batch.targets.to(device)

    def step() -> None:
        prediction = twin(inputs)
        loss = task.loss(twin, prediction.output, targets)
        if penalised:
            loss = loss + sum(jacobian_penalty(each) for each in prediction.solutions)
        loss.backward()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)
        step()  # which allocates the gradients
        return memory.peak_bytes(step, device)


@torch.no_grad()
def inference_bytes(model: EquilibriumModel, inputs: Tensor, limit: int) -> dict[str, int]:
    """Return the peak of a forward without gradients, by solver, in bytes.

    In float32, without autocast.

    Args:
        model: read with each solver in place of its own.
        inputs: images, on the model's device.
        limit: evaluations after which a solve is stopped.

    papers: Bai et al. 2021, sec. 3.4.
    """
    usual = cast(Any, model.deq.solver)
    common = {"rtol": usual.rtol, "max_evals": limit}
    solvers: Sequence[tuple[str, Solver]] = (
        ("recipe", cast(Solver, replace(usual, **common))),
        ("broyden", Broyden(**common)),
        ("none", Picard(**common)),
    )
    found: dict[str, int] = {}
    for name, solver in solvers:
        with evaluation.evaluating(model, solver):
            model(inputs)  # what is set up once is not counted
            found[name] = memory.peak_bytes(lambda: model(inputs), inputs.device)
    return found
