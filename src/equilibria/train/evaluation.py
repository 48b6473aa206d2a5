"""How good a model is, and what its solves cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import gather_object
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.models import EquilibriumModel, Model, Prediction
from equilibria.solve import Solver
from equilibria.stability import spectral_radius
from equilibria.tasks import Batch, Part, Task
from equilibria.train.tally import Tally

DEPTHS = (1, 2, 3, 5, 8, 12)
"""Evaluations after which `equilibria evaluate` reads an answer from the state of a solve."""

BUDGETS = (2, 4, 8, 12, 16, 24)
"""Limits of evaluations under which `equilibria evaluate` reads a text."""

PRECISION = {"float32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Accelerate's words for a recipe's precision."""

_Tree = TypeVar("_Tree")


def accelerator(precision: str) -> Accelerator:
    """Return the accelerator of this process: a CUDA device where there is one, else the CPU.

    Other devices are left out because the solvers need float64 for their small systems. A process
    works in one precision at a time: accelerators from before take on that of the latest.
    """
    state: Any = AcceleratorState
    if state._shared_state and state().mixed_precision != PRECISION[precision]:
        state._reset_state()  # else a second run in this process could have no other precision
    return Accelerator(cpu=not torch.cuda.is_available(), mixed_precision=PRECISION[precision])


def part_of(accelerator: Accelerator) -> Part:
    """Return the part of all work that this process does."""
    return Part(accelerator.process_index, accelerator.num_processes)


def to_device(tree: _Tree, accelerator: Accelerator) -> _Tree:
    """Return a tree with its tensors on the accelerator's device."""
    device = accelerator.device
    return pytree.tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, tree)


def loss_of(
    model: Model, task: Task, prediction: Prediction, targets: Tensor, accelerator: Accelerator
) -> Tensor:
    """Return the loss of a prediction, a scalar, in the precision of the run.

    What is read from parts of the state in training adds its mean loss times `task.auxiliary`.
    """
    with accelerator.autocast():
        loss = task.loss(model, prediction.output.float(), targets)
        if not prediction.auxiliary:
            return loss
        parts = [task.loss(model, part.float(), targets) for part in prediction.auxiliary]
        return loss + task.auxiliary * torch.stack(parts).mean()


def output_at(model: EquilibriumModel, states: Sequence[Any]) -> Tensor:
    """Return what is read from states on the way to the solutions of a prediction.

    Args:
        model: whose solutions they are.
        states: one of each solve, in order: pieces of a sequence, which are solved one after the
            other, are read as one, (batch, time, ...).
    """
    outputs = [model.readout(state) for state in states]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)


@contextmanager
def evaluating(model: Model, solver: Solver | None = None) -> Iterator[None]:
    """Put a model into evaluation mode for a while.

    Args:
        model: the model.
        solver: solves in the meantime; None for the model's own.
    """
    mode = model.training
    model.eval()
    layer = model.deq if solver is not None and isinstance(model, EquilibriumModel) else None
    before = None if layer is None else layer.eval_solver
    if layer is not None:
        layer.eval_solver = solver
    try:
        yield
    finally:
        if layer is not None:
            layer.eval_solver = before
        model.train(mode)


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
) -> dict[str, Any]:
    """Return loss, the task's figures, evaluations and statuses of `model` on a split.

    All processes share the work and get the same answer. The model is in evaluation mode meanwhile.

    Args:
        model: the model itself, on the accelerator's device.
        task: gives data, loss and figures.
        accelerator: tells the device and the processes.
        split: one of the task's.
        batch_size: as `Task.batches` takes it.
        depths: evaluations of each solve after which the accuracy is taken too, under
            "accuracy_at". A sample that has converged earlier counts with its solution.
        solver: solves in place of the model's own.
        count_solves: whether solves are counted: not while training begins with a shallow network.

    Raises:
        ValueError: there is no such split.
    """
    tally, at = Tally(), Counter[int]()
    carry = None
    with evaluating(model, solver):
        for batch in task.batches(split, batch_size, part_of(accelerator)):
            inputs, targets, begins = to_device(batch, accelerator)
            carry = None if begins else carry
            with accelerator.autocast():
                if depths and isinstance(model, EquilibriumModel):
                    prediction = model(inputs, carry=carry, states=tuple(depths))
                    of_each = [solution.states for solution in prediction.solutions]
                    for depth, states in zip(depths, zip(*of_each, strict=True), strict=True):
                        right = task.correct(model, output_at(model, states).float(), targets)
                        at[depth] += 0 if right is None else int(right.sum())
                else:
                    prediction = model(inputs, carry=carry)
            carry = prediction.carry
            loss = float(loss_of(model, task, prediction, targets, accelerator))
            right = task.correct(model, prediction.output.float(), targets)
            tally.add(loss, task.units(targets), right)
            if count_solves:
                tally.add_solves(prediction.solutions, _asked(targets))
    parts = gather_object([(tally.state(), at)])
    tally = Tally.total(Tally.restore(state) for state, _ in parts)
    result = tally.summary(task.figures)
    del result["adjoint"]
    if depths and tally.answers and isinstance(model, EquilibriumModel):
        right = sum((part for _, part in parts), Counter[int]())
        result["accuracy_at"] = {str(depth): right[depth] / tally.answers for depth in depths}
    return {"split": split, task.unit: tally.units, **result}


def _asked(targets: Tensor) -> Tensor | None:
    """Return (batch,) bool, the rows in which something is asked; None where that is all."""
    if targets.ndim == 1:
        return None
    asked = (targets >= 0).flatten(1).any(1)
    return None if bool(asked.all()) else asked


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
        accelerator: tells the device and the processes.
        split: one of the task's.
        batch_size: as `Task.batches` takes it.
        limits: numbers of evaluations, kept under "max_evals" as they are given.
    """
    usual = model.deq.eval_solver or model.deq.solver
    found = []
    for limit in limits:
        solver = replace(usual, max_evals=min(limit, usual.max_evals))
        result, seconds = timed(
            model, task, accelerator, split=split, batch_size=batch_size, solver=solver
        )
        found.append({"max_evals": limit, **result, f"seconds_per_{task.unit[:-1]}": seconds})
    return found


def timed(
    model: Model, task: Task, accelerator: Accelerator, **options: Any
) -> tuple[dict[str, Any], float]:
    """Return what `evaluate` says and how many seconds a unit of the task took.

    The first batch is read once before the clock starts: what is set up only once is not counted.

    Args:
        model: the model itself, on the accelerator's device.
        task: gives data, loss and figures.
        accelerator: tells the device and the processes.
        **options: of `evaluate`.
    """
    _warm_up(model, task, accelerator, **options)
    begin = time.perf_counter()
    result = evaluate(model, task, accelerator, **options)
    if accelerator.device.type == "cuda":
        torch.cuda.synchronize()
    return result, (time.perf_counter() - begin) / max(1, result[task.unit])


@torch.no_grad()
def _warm_up(
    model: Model,
    task: Task,
    accelerator: Accelerator,
    *,
    split: str = "test",
    batch_size: int = 500,
    solver: Solver | None = None,
    **_: Any,
) -> None:
    """Read the first batch, on this process, and forget it."""
    for batch in islice(task.batches(split, batch_size, part_of(accelerator)), 1):
        with evaluating(model, solver), accelerator.autocast():
            model(to_device(batch.inputs, accelerator))
    if accelerator.device.type == "cuda":
        torch.cuda.synchronize()


@torch.no_grad()
def radius(model: EquilibriumModel, inputs: Tensor) -> dict[str, float]:
    """Return mean and largest spectral radius of the cell's Jacobian at the solutions of `inputs`.

    The estimate always starts at the same vectors, so that epochs can be compared.
    """
    with evaluating(model):
        operands = model.inject(inputs)
        solution = model.deq(*operands)
        radii = spectral_radius(model.deq.cell, solution.value, *operands)
    return {"mean": float(radii.mean()), "max": float(radii.max())}


def probes(task: Task, count: int, accelerator: Accelerator) -> Batch:
    """Return the first samples of the split that training is judged by, on the device."""
    return to_device(task.sample(task.judged, count), accelerator)
