"""How good a model is, and what its solves cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from equilibria.data import Split
from equilibria.models import EquilibriumModel
from equilibria.stability import spectral_radius
from equilibria.tasks import Task
from equilibria.train.tally import Tally

DEPTHS = (1, 2, 3, 5, 8, 12)
"""Evaluations after which `equilibria evaluate` reads an answer."""


PRECISION = {"float32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Accelerate's words for a recipe's precision."""


def accelerator(precision: str) -> Accelerator:
    """Return the accelerator of this process: a CUDA device where there is one, else the CPU.

    Other devices are left out because the solvers need float64 for their small systems.
    """
    return Accelerator(cpu=not torch.cuda.is_available(), mixed_precision=PRECISION[precision])


@torch.no_grad()
def evaluate(
    model: EquilibriumModel,
    task: Task,
    samples: Split,
    accelerator: Accelerator,
    *,
    batch_size: int = 500,
    depths: Sequence[int] = (),
) -> dict[str, Any]:
    """Return loss, accuracy, evaluations and statuses of `model` on `samples`.

    All processes share the work and get the same answer. The model is in evaluation mode meanwhile.

    Args:
        model: the model itself, on the accelerator's device.
        task: gives loss and metric.
        samples: what to evaluate on.
        accelerator: tells the device and the processes.
        batch_size: samples a batch, on each process.
        depths: evaluations after which the accuracy is taken too, under "accuracy_at". A sample
            that has converged earlier counts with its solution.
    """
    tally, at = Tally(), Counter[int]()
    mode = model.training
    model.eval()
    for index in share(torch.arange(len(samples)), accelerator).split(batch_size):
        inputs, targets = to_device(samples, index, accelerator)
        with accelerator.autocast():
            prediction = model(inputs, states=tuple(depths))
            for depth, state in zip(depths, prediction.solution.states, strict=True):
                at[depth] += int(task.correct(model.readout(state), targets).sum())
        output = prediction.output.float()
        loss = float(task.loss(output, targets))
        tally.add(loss, task.correct(output, targets), prediction.solution)
    model.train(mode)
    parts = gather_object([(tally.state(), at)])
    tally = Tally.total(Tally.restore(state) for state, _ in parts)
    result = tally.summary()
    del result["adjoint"]
    if depths:
        right = sum((part for _, part in parts), Counter[int]())
        result["accuracy_at"] = {str(depth): right[depth] / tally.samples for depth in depths}
    return {"samples": tally.samples, **result}


@torch.no_grad()
def radius(model: EquilibriumModel, inputs: Tensor) -> dict[str, float]:
    """Return mean and largest spectral radius of the cell's Jacobian at the solutions of `inputs`.

    The estimate always starts at the same vectors, so that epochs can be compared.
    """
    mode = model.training
    model.eval()
    operands = model.inject(inputs)
    solution = model.deq(*operands)
    radii = spectral_radius(model.deq.cell, solution.value, *operands)
    model.train(mode)
    return {"mean": float(radii.mean()), "max": float(radii.max())}


def share(index: Tensor, accelerator: Accelerator) -> Tensor:
    """Return the part of `index` that this process works on."""
    with accelerator.split_between_processes(index) as mine:
        return cast(Tensor, mine)


def to_device(
    samples: Split, index: Tensor | slice, accelerator: Accelerator
) -> tuple[Tensor, Tensor]:
    """Return (inputs, targets) of the samples that `index` names, on the accelerator's device."""
    inputs, targets = samples[index]
    return inputs.to(accelerator.device), targets.to(accelerator.device)
