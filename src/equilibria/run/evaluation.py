"""How good a model is, and what its solves cost."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import gather_object, parse_flag_from_env
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria import files
from equilibria.nn import using
from equilibria.nn.using import in_eval_mode
from equilibria.run import processes as devices
from equilibria.run.data import storage
from equilibria.run.data.storage import DataError
from equilibria.run.models import EquilibriumModel, Model, Prediction
from equilibria.run.processes import meet_again
from equilibria.run.records import Baseline
from equilibria.run.run import Folder
from equilibria.run.tally import Tally
from equilibria.run.tasks import Batch, Part, Task
from equilibria.run.trees import to_device, widen
from equilibria.solve import Solver
from equilibria.stability import spectral_radius

DEPTHS = (1, 2, 3, 5, 8, 12)
"""Evaluations after which `equilibria evaluate` reads the state of a solve."""

BUDGETS = (2, 4, 8, 12, 16, 24)
"""Limits on evaluations under which `equilibria evaluate` evaluates a text."""

PRECISION = {"float32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Accelerate's words for a recipe's precision."""


def accelerator(precision: str, device: str | None = None) -> Accelerator:
    """Return the accelerator of this process.

    Accelerate keeps device and precision for a whole process, so both are replaced here where an
    earlier call had others: earlier accelerators then take on those of the latest.

    Args:
        precision: a recipe's.
        device: cpu, cuda or cuda:N; None for a GPU where there is one, else the CPU.

    Raises:
        DeviceError: there is no such device here.
    """
    if device is None and parse_flag_from_env("ACCELERATE_USE_CPU"):  # accelerate launch --cpu
        device = "cpu"
    where = devices.device(device)
    cpu, state, partial = where.type == "cpu", cast(Any, AcceleratorState), cast(Any, PartialState)
    if devices.processes() == 1:
        if partial._shared_state and partial().device != where:
            state._reset_state(reset_partial_state=True)
        partial(cpu=cpu).device = where  # Accelerate by itself knows no number of a GPU
        if where.index is not None:
            torch.cuda.set_device(where)
    elif not partial._shared_state:
        if not cpu:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        meet_again("gloo" if cpu else "nccl")
    if state._shared_state and state().mixed_precision != PRECISION[precision]:
        state._reset_state()
    return Accelerator(cpu=cpu, mixed_precision=PRECISION[precision])


def part_of(accelerator: Accelerator) -> Part:
    """Return the part of all work that this process does."""
    return Part(accelerator.process_index, accelerator.num_processes)


def loss_of(
    model: Model, task: Task, prediction: Prediction, targets: Any, accelerator: Accelerator
) -> Tensor:
    """Return the loss of a prediction, the sum over its units, in the precision of the run.

    Auxiliary outputs of a prediction, which it has in training alone, add what `task.extra_loss`
    makes of their losses.
    """
    with accelerator.autocast():
        loss = task.loss(model, widen(prediction.output), targets)
        if not prediction.auxiliary:
            return loss
        parts = [task.loss(model, widen(part), targets) for part in prediction.auxiliary]
        return loss + task.extra_loss(torch.stack(parts))


@torch.no_grad()
def sums_of(
    model: Model, task: Task, prediction: Prediction, targets: Any, loss: Tensor
) -> dict[str, Tensor]:
    """Return what a batch adds to the sums of a tally, given its summed loss; see `Task.sums`."""
    output = pytree.tree_map_only(Tensor, Tensor.detach, widen(prediction.output))
    units = torch.tensor(task.units(targets))
    return {"loss": loss, "units": units, **task.sums(model, output, targets)}


def output_at(model: Any, states: Sequence[Any], inputs: Any) -> Any:
    """Return what is read from states on the path to the solutions of a prediction.

    Args:
        model: the equilibrium model whose solutions they are.
        states: one of each solve, in order: pieces of a sequence, which are solved one after the
            other, are read as one, (batch, time, ...).
        inputs: what the prediction is for.
    """
    outputs = [model.answer(state, inputs) for state in states]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


@torch.no_grad()
def evaluate(
    model: Model,
    task: Task,
    accelerator: Accelerator,
    *,
    split: str = "test",
    batch_size: int = 500,
    depths: Sequence[int] = (),
    solver: Solver | None = None,
    count_solves: bool = True,
    record: bool = False,
) -> dict[str, Any]:
    """Return the task's figures, evaluations and statuses of `model` on a split.

    All processes share the work and get the same answer. The model is in evaluation mode meanwhile.

    Args:
        model: the model itself, on the accelerator's device.
        task: gives data, loss and figures.
        accelerator: gives the device and the processes.
        split: one of the task's.
        batch_size: as `Task.batches` takes it.
        depths: evaluations of each solve after which the figures are taken too, under "at". A
            sample that has converged earlier counts with its solution. Left out where the task
            cannot judge states on the way.
        solver: solves in place of the model's own.
        count_solves: whether solves are counted: not while training begins with a shallow network.
        record: whether the result has what the task keeps of a final evaluation; see `Task.record`.

    Raises:
        ValueError: there is no such split.
        DataError: it is empty.
    """
    depths = tuple(depths) if isinstance(model, EquilibriumModel) and task.early else ()
    tally, at = Tally(), {depth: Tally() for depth in depths}
    carry = None
    with in_eval_mode(model), using(model, eval_solver=solver):
        for batch in task.batches(split, batch_size, part_of(accelerator)):
            inputs, targets, begins, *_ = to_device(batch, accelerator.device)
            options = {"states": depths} if depths else {}
            with accelerator.autocast():
                prediction = model(inputs, carry=None if begins else carry, **options)
                of_each = [solution.states for solution in prediction.solutions]
                for early, states in zip(at.values(), zip(*of_each, strict=True), strict=True):
                    then = prediction._replace(output=output_at(model, states, inputs))
                    loss = loss_of(model, task, then, targets, accelerator)
                    early.add(sums_of(model, task, then, targets, loss))
            carry = prediction.carry
            loss = loss_of(model, task, prediction, targets, accelerator)
            tally.add(sums_of(model, task, prediction, targets, loss))
            if count_solves:
                tally.add_solves(prediction.solutions, task.select_rows(targets), with_error=True)
    parts = gather_object([[each.state() for each in (tally, *at.values())]])
    tally, *early = (Tally.total(states) for states in zip(*parts, strict=True))
    if not tally.sums:
        raise DataError(f"the {split} split of {task.source or 'the data'} is empty")
    result = {"split": split, task.unit: tally.units, **tally.summary(task, split)}
    del result["adjoint"]
    if record:
        result.update(task.record(tally.sums))
    if depths:
        figures = (task.figures(each.sums, split) for each in early)
        result["at"] = dict(zip(map(str, depths), figures, strict=True))
    return result


def budgets(
    model: EquilibriumModel,
    task: Task,
    accelerator: Accelerator,
    *,
    split: str = "test",
    batch_size: int = 500,
    limits: Iterable[int] = BUDGETS,
) -> list[dict[str, Any]]:
    """Return what `evaluate` says under several limits of evaluations, each with its time.

    A limit above the one that the solver has itself changes nothing: its row says what the model
    does without it. What a model carries over from one segment of a text to the next is found under
    the same limit.

    Args:
        model: the model itself, on the accelerator's device.
        task: gives data, loss and figures.
        accelerator: gives the device and the processes.
        split: one of the task's.
        batch_size: as `Task.batches` takes it.
        limits: numbers of evaluations, kept under "max_evals" as they are given.
    """
    usual = model.deq.eval_solver or model.deq.solver
    found = []
    for limit in limits:
        solver = replace(usual, max_evals=min(limit, usual.max_evals))
        result, seconds = time_evaluation(
            model, task, accelerator, split=split, batch_size=batch_size, solver=solver
        )
        found.append({"max_evals": limit, **result, f"seconds_per_{task.unit[:-1]}": seconds})
    return found


def time_evaluation(
    model: Model,
    task: Task,
    accelerator: Accelerator,
    *,
    split: str = "test",
    batch_size: int = 500,
    solver: Solver | None = None,
    **others: Any,
) -> tuple[dict[str, Any], float]:
    """Return the result of `evaluate` and the seconds per unit of the task.

    The first batch is run once before the clock starts: one-off set-up is not counted.

    Args:
        model, task, accelerator, split, batch_size, solver, others: see `evaluate`.
    """
    chosen: dict[str, Any] = {"split": split, "batch_size": batch_size}
    for batch in islice(task.batches(**chosen, part=part_of(accelerator)), 1):
        solve_by = using(model, eval_solver=solver)
        with torch.no_grad(), in_eval_mode(model), solve_by, accelerator.autocast():
            model(to_device(batch.inputs, accelerator.device))
    _wait(accelerator)
    begin = time.perf_counter()
    result = evaluate(model, task, accelerator, solver=solver, **chosen, **others)
    _wait(accelerator)
    return result, (time.perf_counter() - begin) / max(1, result[task.unit])


def _wait(accelerator: Accelerator) -> None:
    """Wait until the device has finished."""
    if accelerator.device.type == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def radius(model: EquilibriumModel, inputs: Any) -> dict[str, float]:
    """Return mean and largest spectral radius of the cell's Jacobian at the solutions of `inputs`.

    The estimate always starts at the same vectors, so that epochs can be compared.
    """
    with in_eval_mode(model):
        operands = model.inject(inputs)
        solution = model.deq(*operands)
        # Of graphs side by side, which are solved one by one, it is that of all together.
        coupled = model.deq.coupled
        radii = spectral_radius(model.deq.cell, solution.value, *operands, coupled=coupled)
    return {"mean": float(radii.mean()), "max": float(radii.max())}


def probes(task: Task, count: int, accelerator: Accelerator) -> Batch:
    """Return the first samples of the split that follows each epoch, on the device."""
    return to_device(task.sample(task.eval_split, count), accelerator.device)


# --- baseline -------------------------------------------------------------------------------------

# The figures of a task's baseline on the data of a run.


def reference(task: Task, folder: Folder, split: str) -> dict[str, Any]:
    """Return the figures of a task's baseline on a split, and its `name`.

    They are cached in the run folder.

    Args:
        task: of the run; it has a baseline.
        folder: of the run.
        split: one of the task's.
    """
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # it is recreated
        known = storage.read(folder.baseline, Baseline, spelt=True)
    if known.get("data") != task.checksum:
        known = {"data": task.checksum, "splits": {}}
    if split not in known["splits"]:
        known["splits"][split] = task.reference(split)
        files.write_json(folder.baseline, known)
    return {"name": task.baseline, **known["splits"][split]}
