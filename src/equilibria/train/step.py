"""One step of training: forward, loss, backward, and the optimiser."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy
import torch
from accelerate import Accelerator
from torch import Tensor

from equilibria.models import EquilibriumModel, Model, Prediction
from equilibria.tasks import Batch, Task
from equilibria.train import checkpoint
from equilibria.train.beginning import begin
from equilibria.train.evaluation import loss_of, output_at, to_device
from equilibria.train.initialisation import Beginning
from equilibria.train.recipe import Recipe
from equilibria.train.stabiliser import Stabiliser
from equilibria.train.tally import Tally


class TrainingError(RuntimeError):
    """Training cannot go on; the message says why."""


class Diverged(TrainingError):
    """The loss or the gradient is not finite; the recipe is why, and not where it is trained."""


class Step:
    """A model and its optimiser, and what a step does to them.

    Args:
        recipe: what to do.
        task: loss and figures.
        accelerator: device, processes and precision.
        steps: of the whole run.
        fresh: the run begins here; otherwise `restore` brings the weights back.

    Raises:
        TrainingError: the recipe asks for a spectral radius that the cell cannot have.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        accelerator: Accelerator,
        steps: int,
        *,
        fresh: bool = True,
    ) -> None:
        self.recipe, self.task, self.accelerator, self.steps = recipe, task, accelerator, steps
        seed_all(recipe.seed)
        self.model: Model = task.model(recipe.model, **recipe.layer())
        self.beginning = self._begin() if fresh else None
        optimiser = recipe.optimiser.build(self.model)
        self.rates = [group["lr"] for group in optimiser.param_groups]
        self.wrapped, self.optimiser = accelerator.prepare(self.model, optimiser)
        seed_all(recipe.seed + accelerator.process_index)  # own dropout masks on each process
        self.stabiliser = Stabiliser(recipe, steps, accelerator)

    def _begin(self) -> Beginning | None:
        """Fill the recurrent weights as the recipe says, and return what they were set to."""
        try:
            return begin(self.recipe, self.task, self.model, self.accelerator)
        except ValueError as error:
            asked = self.recipe.initialisation
            if asked is None or asked.radius is None:
                raise
            raise TrainingError(f"initialisation.radius {asked.radius:g}: {error}") from None

    def shallow(self, step: int) -> bool:
        """Return whether step `step` is of the shallow network that training begins with."""
        return self.recipe.pretrain is not None and step < self.recipe.pretrain.steps

    @contextmanager
    def phase(self, step: int) -> Iterator[None]:
        """Make the model for a while what it is in step `step`: shallow, or as it is."""
        if self.recipe.pretrain is None or not self.shallow(step):
            yield
            return
        with self.recipe.pretrain.applied(self.model):
            yield

    def take(self, step: int, batch: Batch, carry: Any, tally: Tally) -> Any:
        """Take step `step` on a batch, count it in the tally, and return what the next is given.

        Args:
            step: from 0.
            batch: this process's part of it.
            carry: of the step before; used unless the batch begins anew.
            tally: gets loss and solves.

        Raises:
            Diverged: the loss or the gradient is not finite.
        """
        factor = self.recipe.schedule.factor(step, self.steps)
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        inputs, targets, begins = batch
        inputs, targets = to_device((self.task.augment(inputs), targets), self.accelerator)
        with self.phase(step):
            prediction = self._forward(inputs, None if begins else carry, step)
            loss = loss_of(self.model, self.task, prediction, targets, self.accelerator)
            value = float(loss.detach())
            if not math.isfinite(value):
                raise lost(f"the loss is {value}", step)
            solutions = () if self.shallow(step) else prediction.solutions
            extra = self.stabiliser.extra(
                step, solutions, lambda states: self._early(prediction, states, targets)
            )
            if extra is not None and not math.isfinite(float(extra.detach())):
                added = float(extra.detach())
                what = f"what the regulariser and the correction add to the loss is {added}"
                raise lost(what, step)
            self.accelerator.backward(loss if extra is None else loss + extra)
        limit = math.inf if self.recipe.clip is None else self.recipe.clip
        length = self.accelerator.clip_grad_norm_(self.model.parameters(), limit)
        scaled = self.accelerator.scaler is not None  # then the optimiser skips such a step itself
        if length is not None and not scaled and not math.isfinite(float(length)):
            raise lost("the gradient is not finite", step)
        self.optimiser.step()
        self.optimiser.zero_grad()
        with torch.no_grad():
            right = self.task.correct(self.model, prediction.output.detach().float(), targets)
        tally.add(value, self.task.units(targets), right)
        tally.add_solves(solutions)
        self.stabiliser.observe(step, solutions)
        return checkpoint.copied(prediction.carry)

    def state(self) -> dict[str, Any]:
        """Return model and optimiser as a checkpoint has them; `restore` takes them back."""
        scaler = self.accelerator.scaler
        return {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "scaler": None if scaler is None else scaler.state_dict(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go back to a `state`."""
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])

    def _forward(self, inputs: Tensor, carry: Any, step: int) -> Prediction:
        """Return the prediction, with the iterates that the correction asks for."""
        states = () if self.shallow(step) else self.stabiliser.states()
        options = {"states": states} if states else {}
        return cast(Prediction, self.wrapped(inputs, carry=carry, **options))

    def _early(self, prediction: Prediction, states: Sequence[Any], targets: Tensor) -> Tensor:
        """Return the loss of what is read from earlier states, one of each solve."""
        with self.accelerator.autocast():
            output = output_at(cast(EquilibriumModel, self.model), states)
        early = prediction._replace(output=output, auxiliary=())
        return loss_of(self.model, self.task, early, targets, self.accelerator)


def lost(what: str, step: int) -> Diverged:
    """Return the error that ends training before a step that would ruin the weights."""
    return Diverged(
        f"{what} at step {step + 1}. The weights and the checkpoint saved are from "
        "before; a lower optimiser.lr or a clip may help, in a new run (--out)"
    )


def seed_all(seed: int) -> None:
    """Seed all global random generators."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
