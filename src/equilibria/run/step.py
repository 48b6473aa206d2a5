"""One step of training: its micro-batches, their loss and gradient, and the optimiser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from equilibria import draws
from equilibria.run.evaluation import loss_of, output_at, sums_of
from equilibria.run.hooks import Forward
from equilibria.run.models import Prediction
from equilibria.run.processes import total_over
from equilibria.run.start import TrainingError
from equilibria.run.tasks import Batch
from equilibria.run.trees import copy_tensors, to_device
from equilibria.solve import Solution

if TYPE_CHECKING:
    from equilibria.run.trainer import Trainer


class Diverged(TrainingError):
    """The loss or the gradient is not finite; the cause is the recipe, not the machine."""


class TrainingStep:
    """The next step of a trainer.

    Loss and gradient are the mean over all units of the step, in all micro-batches on all
    processes, however unevenly these are distributed.

    Args:
        trainer: whose model and optimiser take it.
        penalized: whether the step has the regulariser's penalty; None: drawn, as the recipe says.

    Attributes:
        batches: the micro-batches of this process, augmented.
        scale: factor that turns the summed loss of a micro-batch into its part of the mean.
        shallow: the shallow network that the step trains; None if it solves.
        hooks: those that act in this step.
        value, added: sums of the loss, and of the hooks' terms, over the micro-batches so far.
    """

    def __init__(self, trainer: Trainer, penalized: bool | None) -> None:
        self.trainer, self.penalized = trainer, penalized
        self.recipe, self.accelerator = trainer.recipe, trainer.accelerator
        self.batches = [self._augment(k) for k in range(self.recipe.accumulate)]
        own = sum(trainer.task.units(batch.targets) for batch in self.batches)
        (units,) = total_over(self.accelerator, own)
        # DDP takes the mean over the processes.
        self.scale = self.accelerator.num_processes / max(units, 1)
        self.shallow = trainer.shallow(trainer.step)
        self.hooks = [] if self.shallow else trainer.hooks
        self.options: dict[str, Any] = {}  # of the model's forward
        self.value, self.added = 0.0, 0.0

    def _key_draws(self, what: str, index: int = 0) -> AbstractContextManager[None]:
        """Key what a block draws for a micro-batch to the step and to the rows of its batch."""
        rows = self.trainer.part.divide(index, self.recipe.accumulate).of(self.recipe.rows)
        return draws.key_rows(f"{what} {self.recipe.seed} {self.trainer.step}", rows)

    def _augment(self, index: int) -> Batch:
        with self._key_draws("augmentation", index):
            return self.trainer.task.augment(self.trainer.batch(index))

    def take(self) -> None:
        """Take the step.

        Raises:
            Diverged: the loss or the gradient is not finite, on any process.
        """
        trainer, step = self.trainer, self.trainer.step
        begin, steps = self.recipe.segment(step, trainer.steps_per_epoch)
        factor = self.recipe.schedule.factor(step - begin, steps)
        for group, rate in zip(trainer.optimizer.param_groups, trainer.rates, strict=True):
            group["lr"] = rate * factor
        carries = trainer.carry or [None] * len(self.batches)
        for hook in self.hooks:
            if hook.due(step):
                with trainer.layout.gather(), self._key_draws(hook.name):
                    hook.prepare(step, self.batches, carries)
            self.options |= hook.options()
        trainer.carry, solutions = [], list[Solution]()
        for index, (batch, carry) in enumerate(zip(self.batches, carries, strict=True)):
            prediction = self._accumulate(index, to_device(batch, self.accelerator.device), carry)
            solutions += prediction.solutions
            trainer.carry.append(copy_tensors(prediction.carry))
        self._update()
        for hook in self.hooks:
            hook.observe(step, solutions)

    def _accumulate(self, index: int, batch: Batch, carry: Any) -> Prediction:
        """Add the gradient of a micro-batch; return the prediction that it is of."""
        trainer, last = self.trainer, index + 1 == len(self.batches)
        with ExitStack() as around:
            if self.shallow is not None:
                around.enter_context(self.shallow.unroll(trainer.model))
            around.enter_context(trainer.layout.sync(last))
            for hook in self.hooks:
                around.enter_context(hook.around(trainer.step))
            around.enter_context(self._key_draws("masks", index))
            prediction = self._predict(batch, carry)
            loss = self._loss(prediction, batch)
            total = self.scale * loss
            self.value += float(total.detach())
            early_loss = partial(self._early_loss, prediction, batch)
            share = batch.samples * self.accelerator.num_processes / self.recipe.rows
            forward = Forward(prediction, early_loss, share, self.penalized)
            # By a key of their own: the masks are the same without a penalty.
            with self._key_draws("probes", index):
                terms = [hook.term(trainer.step, forward) for hook in self.hooks]
            for term in terms:
                if term is not None:
                    total = total + term
                    self.added += float(term.detach())
            # Before backward, which lets go of parameters that are shared out.
            if prediction.auxiliary:  # the loss that is shown is that of the answer
                with torch.no_grad():
                    loss = self._loss(prediction._replace(auxiliary=()), batch)
            sums = sums_of(trainer.model, trainer.task, prediction, batch.targets, loss)
            if last:
                self._check_finite()
            self.accelerator.backward(total)
        trainer.tally.add(sums)
        if self.shallow is None:
            trainer.tally.add_solves(prediction.solutions)
        return prediction

    def _predict(self, batch: Batch, carry: Any) -> Prediction:
        """Return the model's prediction for a micro-batch."""
        if self.trainer.reuse is not None and self.shallow is None:
            return self.trainer.reuse.predict(batch)
        carry = None if batch.begins else carry
        return self.trainer.layout.predict(batch.inputs, carry=carry, **self.options)

    def _loss(self, prediction: Prediction, batch: Batch) -> Tensor:
        """Return the loss of a prediction, the sum over its units."""
        trainer = self.trainer
        return loss_of(trainer.model, trainer.task, prediction, batch.targets, self.accelerator)

    def _early_loss(self, prediction: Prediction, batch: Batch, states: Sequence[Any]) -> Tensor:
        """Return `scale` times the loss of what is read from earlier states, one of each solve."""
        with self.accelerator.autocast():
            output = output_at(self.trainer.model, states, batch.inputs)
        return self.scale * self._loss(prediction._replace(output=output, auxiliary=()), batch)

    def _check_finite(self) -> None:
        """Raise Diverged on all processes if the loss or penalty of any of them is not finite.

        Called before they synchronise in backward, where one that had ended would block the others.
        """
        names = "the loss", "the sum of the regulariser and the correction"
        totals = total_over(self.accelerator, self.value, self.added)
        for name, each in zip(names, totals, strict=True):
            if not math.isfinite(each):
                raise self._divergence(f"{name} is {each}")

    def _update(self) -> None:
        """Let the optimiser act on the gradient, clipped as the recipe says."""
        layout, optimizer = self.trainer.layout, self.trainer.optimizer
        length = layout.clip(math.inf if self.recipe.clip is None else self.recipe.clip)
        scaled = self.accelerator.scaler is not None  # then the optimiser skips such a step itself
        if length is not None and not scaled and not math.isfinite(length):
            raise self._divergence("the gradient is not finite")
        optimizer.step()
        layout.constrain()
        optimizer.zero_grad()

    def _divergence(self, what: str) -> Diverged:
        """Return the error that ends training before a step that would ruin the weights."""
        return Diverged(
            f"{what} at step {self.trainer.step + 1}: a lower optimizer.lr or a clip may help, in "
            "a new run (--out)"
        )


def mean_loss(trainer: Trainer, batch: Batch, carry: Any) -> Tensor:
    """Return the mean loss of a batch of a trainer's task, by a forward of its own."""
    batch, task = to_device(batch, trainer.accelerator.device), trainer.task
    with trainer.accelerator.autocast():
        prediction = trainer.model(batch.inputs, carry=carry)
    loss = loss_of(trainer.model, task, prediction, batch.targets, trainer.accelerator)
    return loss / max(1, task.units(batch.targets))
