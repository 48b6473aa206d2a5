"""Bytes and milliseconds of a training step of flow networks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equilibria.experiments.measures import timing
from equilibria.experiments.study import Context
from equilibria.run import evaluation, memory
from equilibria.run.models import EquilibriumModel
from equilibria.run.trainer import Trainer
from equilibria.solve import SolveWarning

__all__ = ["bytes_of_refinement", "times_of_steps"]


class _Given(nn.Module):
    """In place of what is computed once of a pair: the same, ready, so that it takes no memory in
    a step."""

    def __init__(self, operands: Any) -> None:
        super().__init__()
        self.operands = pytree.tree_map_only(
            Tensor, lambda x: x.detach().requires_grad_(), operands
        )

    def forward(self, x: Any) -> Any:
        del x
        return self.operands


def _trainers(context: Context) -> dict[str, Trainer]:
    """New networks, by their names, with their recipes' batches."""
    names = context.factors["networks"]
    trainers: dict[str, Trainer] = {}
    for name, recipe in zip(str(names).split("; "), context.reads, strict=True):
        accelerator = evaluation.accelerator(recipe.precision)
        trainers[name] = Trainer(recipe, context.tasks(recipe), accelerator)
    return trainers


def bytes_of_refinement(context: Context) -> Iterable[dict[str, Any]]:
    """`bytes` of forward and backward of each `refined` network beyond its encoders: the peak less
    parameters and gradients, in float32, with the losses of its recipe."""
    for name, trainer in _trainers(context).items():
        model: Any = trainer.model.train()
        batch = evaluation.to_device(trainer.batch(), trainer.accelerator)
        inputs, targets = batch.inputs, batch.targets
        with torch.no_grad():
            model.scene = _Given(model.scene(inputs))
        correction = trainer.recipe.correction
        solver = trainer.recipe.solver
        depths = () if correction is None else correction.depths(solver.max_evals if solver else 0)

        def step(
            model: Any = model,
            trainer: Trainer = trainer,
            inputs: Any = inputs,
            targets: Any = targets,
            depths: tuple[int, ...] = depths,
        ) -> None:
            implicit = isinstance(model, EquilibriumModel)
            prediction = model(inputs, **({"states": depths} if implicit else {}))
            accelerator, task = trainer.accelerator, trainer.task
            loss = evaluation.loss_of(model, task, prediction, targets, accelerator)
            if trainer.recipe.correction is not None:
                loss = loss + trainer.recipe.correction(
                    lambda z: task.loss(model, model.answer(z, inputs), targets),
                    prediction.solution.states,
                )
            loss.backward()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SolveWarning)  # of a network that has learned nothing
            step()  # which allocates the gradients
            yield {
                "refined": name,
                "bytes": memory.peak_bytes(step, next(model.parameters()).device),
            }


def times_of_steps(context: Context) -> Iterable[dict[str, Any]]:
    """`step_ms` of a training step of each `timed` network, all interleaved."""
    for name, each in timing.steps(_trainers(context)).items():
        yield {"timed": name, "step_ms": each["step"]}
