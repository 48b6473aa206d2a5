"""The steps of a training run, and the record of an epoch."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object

from equilibria.run import evaluation
from equilibria.run import recipe as recipes
from equilibria.run.alternating import Alternation
from equilibria.run.checkpoint import Background
from equilibria.run.hooks import AuditHook, Hook
from equilibria.run.initialization import ShallowStart
from equilibria.run.models import EquilibriumModel
from equilibria.run.path import PathHook
from equilibria.run.processes import keep_random_state, seed_all, total_over
from equilibria.run.recipe import Recipe
from equilibria.run.reusing import Reuse
from equilibria.run.stabilizer import Stabilizer
from equilibria.run.start import StartingModel, TrainingError, as_training_error
from equilibria.run.step import TrainingStep, mean_loss
from equilibria.run.tally import Tally, throughput
from equilibria.run.tasks import Batch, Task
from equilibria.stability import AdaptiveAdjoint, AdjointAudit

Probe = Callable[["Trainer"], dict[str, Any]]
"""Measures something after each epoch; what it returns is in the epoch's metrics, under "probe"."""


class Trainer:
    """A model, its optimiser, and their position in the data.

    Args:
        recipe: what to do.
        task: the recipe's task.
        accelerator: device, processes and precision.
        probe: takes further measurements after each epoch.
        fresh: the run begins here; otherwise it is restored from a checkpoint, and the weights
            are not initialised as the recipe says.

    Attributes:
        start: how the model was built, and what its weights were set to.
        layout: the model as it lies on the processes: whole, or sharded.
        model: the model itself, on the accelerator's device, without the wrapper for several
            processes.
        stabilizer: the regulariser and the correction; None if the recipe has neither.
        neural: the learned solver of the steps; None where the recipe has none.
        reuse: the states of all samples, from which steps go on; None where steps solve.
        hooks: these three, and the audit of an adaptive adjoint, as far as the recipe has them.
        step: steps taken.
        carry: what the model carries over to the next step, per micro-batch; None at the start.
        tally: sums and solves of this process since the epoch began.
        seconds: time of the steps since then.
        records: the metrics of all finished epochs.
        background: the checkpoint that is being written while training continues.
        notes: what a run that goes on with another number of processes begins anew.

    Raises:
        TrainingError: the batches cannot be formed from the data or split between the processes; or
            the recipe requests a spectral radius that the cell cannot reach.
        CheckpointError: there are no such weights to begin with, or none fits.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        accelerator: Accelerator,
        *,
        probe: Probe | None = None,
        fresh: bool = True,
    ) -> None:
        self.recipe = recipe = recipes.settle(recipe, task)
        self.task, self.accelerator, self.probe = task, accelerator, probe
        with as_training_error():
            self.feed = task.feed(recipe.rows, recipe.seed)
        self.part = evaluation.part_of(accelerator)
        self.step, self.seconds = 0, 0.0
        self.carry: list[Any] | None = None
        self.tally, self.records, self.notes = Tally(), list[dict[str, Any]](), list[str]()
        _check(self)
        self.start = StartingModel(recipe, task, self.feed, accelerator, fresh=fresh)
        self.layout, self.model = self.start.layout, self.start.layout.model
        self.optimizer = self.layout.prepare(recipe.optimizer.build(self.model))
        self.rates = [group["lr"] for group in self.optimizer.param_groups]
        seed_all(recipe.seed + accelerator.process_index)  # for draws that are not keyed to samples
        self.stabilizer, self.neural, self.reuse, audit, path = _make_hooks(self)
        every: tuple[Hook | None, ...] = self.stabilizer, self.neural, audit, self.reuse, path
        self.hooks = [hook for hook in every if hook is not None]
        self.background = Background(
            accelerator if recipe.checkpoint.async_ else None,
            self.layout.patience,
            self.layout.gloo_group() if recipe.checkpoint.async_ else None,
        )

    # --- the steps of the run ---------------------------------------------------------------------

    @property
    def steps_per_epoch(self) -> int:
        """Steps per epoch: a pass over the data, or as many as the recipe says."""
        return int(self.recipe.epoch_steps or self.feed.steps)

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.recipe.epochs * self.steps_per_epoch

    @property
    def shallow_steps(self) -> int:
        """Steps of the shallow start, the first of the run; 0 without one."""
        start = self.recipe.pretrain
        return 0 if start is None else start.count(self.recipe.segment(0, self.steps_per_epoch)[1])

    def shallow(self, step: int) -> ShallowStart | None:
        """Return the shallow network that step `step` trains; None if the step solves."""
        return self.recipe.pretrain if step < self.shallow_steps else None

    # --- an epoch ---------------------------------------------------------------------------------

    def evaluate(
        self, split: str, depths: Sequence[int] = (), *, record: bool = False
    ) -> dict[str, Any]:
        """Return the model's figures on a split; see `evaluation.evaluate`.

        During a shallow start, the shallow network is evaluated.

        Args:
            split: one of the task's.
            depths: evaluations after which the figures are also taken.
            record: whether it is the final evaluation.
        """
        shallow = self.shallow(self.step - 1)
        with shallow.unroll(self.model) if shallow else nullcontext(), self.layout.gather():
            return evaluation.evaluate(
                self.model,
                self.task,
                self.accelerator,
                split=split,
                batch_size=self.recipe.eval_batch_size,
                depths=() if shallow else depths,
                count_solves=shallow is None,
                record=record,
            )

    def radius(self) -> dict[str, float] | None:
        """Return the spectral radius at the first samples of the evaluation split.

        None for a network without solves; see `evaluation.radius`.
        """
        if not isinstance(self.model, EquilibriumModel) or self.shallow(self.step - 1):
            return None
        probes = evaluation.probes(self.task, self.recipe.probes, self.accelerator)
        with self.layout.gather():
            return evaluation.radius(self.model, probes.inputs)

    def finish_epoch(self) -> dict[str, Any]:
        """Evaluate, and return the metrics of the epoch that ends here; `records` has them too."""
        tallies, unit = gather_object([self.tally.state()]), self.task.unit
        tally, accumulate = Tally.total(tallies), self.recipe.accumulate
        record = {
            "epoch": self.step // self.steps_per_epoch,
            "step": self.step,
            "lr": self.optimizer.param_groups[0]["lr"],
            "seconds": round(self.seconds, 3),
            unit: tally.units,
            "throughput": throughput(
                tallies, tally, self.seconds, unit=unit, accumulate=accumulate
            ),
            "train": tally.summary(self.task),
        }
        for hook in self.hooks:
            record |= hook.finish_epoch()
        record[self.task.eval_split] = self.evaluate(self.task.eval_split)
        if (radius := self.radius()) is not None:
            record["spectral_radius"] = radius
        if self.probe is not None:
            with keep_random_state(), self.layout.gather():  # a probe leaves the run as it is
                record["probe"] = self.probe(self)
        self.records.append(record)
        self.tally, self.seconds = Tally(), 0.0
        return record

    # --- a step -----------------------------------------------------------------------------------

    def batch(self, index: int = 0) -> Batch:
        """Return a micro-batch of the next step: this process's share of the batch, or a part."""
        return self.feed.batch(self.step, self.part.divide(index, self.recipe.accumulate))

    def train_step(self, penalized: bool | None = None) -> None:
        """Take one step of the optimiser on the next batch; see `TrainingStep`.

        Args:
            penalized: whether the step has the regulariser's penalty; None: drawn, as the recipe
                says.

        Raises:
            Diverged: the loss or the gradient is not finite, on any process.
        """
        start = time.perf_counter()
        TrainingStep(self, penalized).take()
        self.step += 1
        self.seconds += time.perf_counter() - start


def _make_hooks(
    trainer: Trainer,
) -> tuple[Stabilizer | None, Alternation | None, Reuse | None, AuditHook | None, PathHook | None]:
    """Return the hooks that a recipe asks for; None for the others."""
    recipe, accelerator = trainer.recipe, trainer.accelerator
    model: Any = trainer.model  # an `EquilibriumModel`, where a recipe asks for any
    stabilizer, neural, reuse, audit, path = None, None, None, None, None
    if recipe.regularizer is not None or recipe.correction is not None:
        stabilizer = Stabilizer(recipe, trainer.steps_per_epoch, accelerator)
    with as_training_error():
        if recipe.path is not None:
            path = PathHook(recipe.path, model, recipe.seed)
        if recipe.neural is not None:
            neural = Alternation(recipe.neural, model, recipe.seed, trainer.steps)
        if recipe.reuse:
            reuse = Reuse(trainer.task, model, accelerator)
    if isinstance(recipe.adjoint, AdaptiveAdjoint):

        def mean(value: float) -> float:
            return total_over(accelerator, value)[0] / accelerator.num_processes

        audit = AuditHook(AdjointAudit(model, mean), partial(mean_loss, trainer))
    return stabilizer, neural, reuse, audit, path


def _check(trainer: Trainer) -> None:
    """Raise TrainingError if a recipe cannot be trained by these processes."""
    recipe, processes = trainer.recipe, trainer.accelerator.num_processes
    if recipe.rows % processes:
        raise TrainingError(
            f"batch_size {recipe.rows} cannot be split equally between {processes} processes"
        )
    if recipe.accumulate * processes > recipe.rows:
        raise TrainingError(
            f"accumulate is {recipe.accumulate}, more than the {recipe.rows // processes}"
            " rows of a batch on each process: lower it or raise batch_size"
        )
    if recipe.precision == "fp16" and trainer.accelerator.device.type == "cpu":
        raise TrainingError("precision fp16 needs a GPU; use bf16 on a CPU")
    if recipe.correction is not None and not trainer.task.early:
        raise TrainingError(
            "correction is a loss on states along the solver's path, and the loss of this task "
            "is of the equilibrium alone: set correction to null"
        )
    if trainer.shallow_steps >= recipe.segment(0, trainer.steps_per_epoch)[1]:
        raise TrainingError(
            f"pretrain.steps is {trainer.shallow_steps} and the run has {trainer.steps} steps: it "
            "would never solve for a fixed point; lower --pretrain.steps, raise --epochs, or "
            "skip it with --pretrain.name null"
        )
