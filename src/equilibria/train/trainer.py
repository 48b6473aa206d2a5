"""The state of a training run: its steps, the record of an epoch, its checkpoint."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from equilibria.deprecated import aliases
from equilibria.models import EquilibriumModel, Model, Prediction
from equilibria.solve import Audited
from equilibria.stability import AdjointAudit
from equilibria.tasks import Batch, Task
from equilibria.train import auditing, checkpoint, evaluation, randomness
from equilibria.train import recipe as recipes
from equilibria.train.alternating import Alternation
from equilibria.train.evaluation import loss_of, output_at, sums_of, to_device
from equilibria.train.initialisation import Beginning
from equilibria.train.pretrain import ShallowStart
from equilibria.train.processes import agreed
from equilibria.train.randomness import seed_all
from equilibria.train.recipe import Recipe
from equilibria.train.reusing import Reuse
from equilibria.train.run import Folder, RunError
from equilibria.train.stabiliser import Stabiliser
from equilibria.train.tally import Tally
from equilibria.train.throughput import Cost, cost_of, throughput
from equilibria.train.transfer import transfer
from equilibria.train.weights import save_weights

__all__ = [
    "Diverged",
    "Probe",
    "Trainer",
    "TrainingError",
    "seed_all",
]

__getattr__ = aliases(__name__, {"train": "equilibria.train.loop.train"})

Probe = Callable[["Trainer"], dict[str, Any]]
"""Measures something after each epoch; what it returns is in the epoch's metrics, under "probe"."""


class TrainingError(RuntimeError):
    """Training cannot continue; the message says why."""


class Diverged(TrainingError):
    """The loss or the gradient is not finite; the cause is the recipe, not the machine."""


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
        model: the model itself, on the accelerator's device, without the wrapper for several
            processes.
        beginning: what the recurrent weights were set to; None if the recipe does not set them.
        taken: what the run began with of another's weights; None if the recipe names none.
        stabiliser: the regulariser and the correction; None if the recipe has neither.
        reuse: the states of all samples, from which steps go on; None where steps solve.
        neural: the learned solver of the steps; None where the recipe has none.
        step: steps taken.
        carry: what the model carries over to the next step, per micro-batch; None at the start.
        tally: sums and solves of this process since the epoch began.
        seconds: time of the steps since then.
        records: the metrics of all finished epochs.

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
        self.recipe = recipe = recipes.settled(recipe, task)
        self.task, self.accelerator, self.probe = task, accelerator, probe
        try:
            self.feed = task.feed(recipe.rows, recipe.seed)
        except ValueError as error:
            raise TrainingError(str(error)) from None
        self._check()
        self.part = evaluation.part_of(accelerator)
        self.step, self.seconds = 0, 0.0
        self.carry: list[Any] | None = None
        self.tally = Tally()
        self.records: list[dict[str, Any]] = []
        seed_all(recipe.seed)
        self.model: Model = task.model(self.recipe.model, **recipe.layer())
        self.beginning = self._begin() if fresh and recipe.initialisation else None
        self.taken = None
        if fresh and recipe.init_from is not None:
            self.taken = transfer(recipe.init_from, self.model)
        optimiser = recipe.optimiser.build(self.model)
        self.rates = [group["lr"] for group in optimiser.param_groups]
        self.wrapped, self.optimiser = accelerator.prepare(self.model, optimiser)
        seed_all(recipe.seed + accelerator.process_index)  # own dropout masks on each process
        self.stabiliser = None
        if recipe.regulariser is not None or recipe.correction is not None:
            self.stabiliser = Stabiliser(recipe, self.segment, accelerator)
        self.reuse = self._remember() if recipe.reuse else None
        self.neural = self._alternate() if recipe.neural is not None else None
        self.audit = None
        if isinstance(recipe.adjoint, Audited):
            self.audit = AdjointAudit(self.model, self._mean)

    def _check(self) -> None:
        """Raise TrainingError if this recipe cannot be trained by these processes."""
        recipe, processes = self.recipe, self.accelerator.num_processes
        if recipe.rows % processes:
            raise TrainingError(
                f"batch_size {recipe.rows} cannot be split equally between {processes} processes"
            )
        if recipe.accumulate * processes > recipe.rows:
            raise TrainingError(
                f"accumulate is {recipe.accumulate}, more than the {recipe.rows // processes}"
                " rows of a batch on each process: lower it or raise batch_size"
            )
        if recipe.precision == "fp16" and self.accelerator.device.type == "cpu":
            raise TrainingError("precision fp16 needs a GPU; use bf16 on a CPU")
        if recipe.correction is not None and not self.task.early:
            raise TrainingError(
                "correction is a loss on states along the solver's path, and the loss of this task "
                "is of the equilibrium alone: set correction to null"
            )
        if self.shallow_steps >= self.segment(0)[1]:
            raise TrainingError(
                f"pretrain.steps is {self.shallow_steps} and the run has {self.steps} steps: it "
                "would never solve for a fixed point; lower --pretrain.steps, raise --epochs, or "
                "skip it with --pretrain.name null"
            )

    def _remember(self) -> Reuse:
        """Return where the states of all samples are kept."""
        assert isinstance(self.model, EquilibriumModel)  # as the recipe has checked
        try:
            return Reuse(self.task, self.model, self.accelerator)
        except ValueError as error:
            raise TrainingError(str(error)) from None

    def _alternate(self) -> Alternation:
        """Return the learned solver of the steps, which has yet to learn."""
        config, model = self.recipe.neural, self.model
        assert config is not None and isinstance(
            model, EquilibriumModel
        )  # as the recipe has checked
        if config.every >= self.steps:
            warnings.warn(
                f"neural.every is {config.every} and the run has {self.steps} steps: all of them "
                "solve by the recipe's solver, and none is learned",
                stacklevel=2,
            )
        try:
            return Alternation(config, model, self.recipe.seed)
        except ValueError as error:
            raise TrainingError(str(error)) from None

    def _begin(self) -> Beginning:
        """Fill the recurrent weights as the recipe says, identically on all processes."""
        asked = self.recipe.initialisation
        assert asked is not None
        try:
            return asked.apply(
                self.model, lambda: to_device(self.feed.batch(0).inputs, self.accelerator)
            )
        except ValueError as error:
            if asked.radius is None:
                raise
            raise TrainingError(f"initialisation.radius {asked.radius:g}: {error}") from None

    @property
    def steps_per_epoch(self) -> int:
        """Steps per epoch: a pass over the data, or as many as the recipe says."""
        return int(self.recipe.epoch_steps or self.feed.steps)

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.recipe.epochs * self.steps_per_epoch

    def segment(self, step: int) -> tuple[int, int]:
        """Return the first step and the number of steps of the segment that `step` is in.

        A run that was extended has several; the schedule starts again with each.
        """
        ends = [epochs * self.steps_per_epoch for epochs in self.recipe.ends]
        end = next((end for end in ends if step < end), ends[-1])
        begin = max(each for each in (0, *ends) if each < end)
        return begin, end - begin

    @property
    def shallow_steps(self) -> int:
        """Steps of the shallow start, the first of the run; 0 without one."""
        start = self.recipe.pretrain
        return 0 if start is None else start.count(self.segment(0)[1])

    # --- what is measured -------------------------------------------------------------------------

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
        shallow = self._shallow(self.step - 1)
        with shallow.applied(self.model) if shallow else nullcontext():
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
        if not isinstance(self.model, EquilibriumModel) or self._shallow(self.step - 1):
            return None
        probes = evaluation.probes(self.task, self.recipe.probes, self.accelerator)
        return evaluation.radius(self.model, probes.inputs)

    def _shallow(self, step: int) -> ShallowStart | None:
        """Return the shallow network that step `step` trains; None if the step solves."""
        return self.recipe.pretrain if step < self.shallow_steps else None

    def finish_epoch(self) -> dict[str, Any]:
        """Evaluate, and return the metrics of the epoch that ends here; `records` has them too."""
        tallies = gather_object([self.tally.state()])
        tally = Tally.total(tallies)
        record = {
            "epoch": self.step // self.steps_per_epoch,
            "step": self.step,
            "lr": self.optimiser.param_groups[0]["lr"],
            "seconds": round(self.seconds, 3),
            self.task.unit: tally.units,
            "throughput": self._throughput(tallies, tally),
            "train": tally.summary(self.task),
            **(self.stabiliser.finish_epoch() if self.stabiliser is not None else {}),
            **({} if self.audit is None else {"audit": auditing.state(self.audit)}),
            **({} if self.reuse is None else self.reuse.finish_epoch()),
            **({} if self.neural is None else self.neural.finish_epoch()),
            self.task.eval_split: self.evaluate(self.task.eval_split),
        }
        if (radius := self.radius()) is not None:
            record["spectral_radius"] = radius
        if self.probe is not None:
            state = randomness.random_state()  # a probe leaves the run as it is
            record["probe"] = self.probe(self)
            randomness.set_random_state(state)
        self.records.append(record)
        self.tally, self.seconds = Tally(), 0.0
        return record

    def _throughput(self, tallies: Sequence[Any], total: Tally) -> dict[str, Any]:
        """Return how fast the epoch trained."""
        recipe = self.recipe
        counted = self.step - self.steps_per_epoch >= self.shallow_steps and not recipe.reuse
        return throughput(
            tallies,
            total,
            self.seconds,
            unit=self.task.unit,
            accumulate=recipe.accumulate,
            samples=self.steps_per_epoch * recipe.rows,
            cost=self._cost if counted else None,
            device=self.accelerator.device,
            precision=recipe.precision,
        )

    @cached_property
    def _cost(self) -> Cost | None:
        """What a sample costs, which the main process alone finds out."""
        if not self.accelerator.is_main_process:
            return None
        return cost_of(self.recipe, self.task, self.feed.batch(self.step - 1, self.part))

    # --- a step -----------------------------------------------------------------------------------

    def batch(self, index: int = 0) -> Batch:
        """Return a micro-batch of the next step: this process's share of the batch, or a part."""
        return self.feed.batch(self.step, self.part.cut(index, self.recipe.accumulate))

    def train_step(self, penalised: bool | None = None) -> None:
        """Take one step of the optimiser on the next batch.

        Loss and gradient are the mean over all units of the step, in all micro-batches on all
        processes, however unevenly these are distributed.

        Args:
            penalised: whether the step has the regulariser's penalty; None: drawn, as the recipe
                says.

        Raises:
            Diverged: the loss or the gradient is not finite, on any process.
        """
        start = time.perf_counter()
        begin, steps = self.segment(self.step)
        factor = self.recipe.schedule.factor(self.step - begin, steps)
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        batches = [self.task.augment(self.batch(k)) for k in range(self.recipe.accumulate)]
        (units,) = self._total(sum(self.task.units(batch.targets) for batch in batches))
        # DDP takes the mean over the processes.
        scale = self.accelerator.num_processes / max(units, 1)
        carries, self.carry = self.carry or [None] * len(batches), []
        shallow = self._shallow(self.step)
        stabiliser = None if shallow else self.stabiliser
        neural = None if shallow else self.neural
        if neural is not None:
            neural.learn(self.step)
        states = stabiliser.states() if stabiliser else ()
        if self.audit is not None and not shallow:
            batch, before = to_device(batches[0], self.accelerator), carries[0]
            carry = None if batch.begins else before
            self.audit(self.step, partial(self._mean_loss, batch, carry))
        value, added, solutions = 0.0, 0.0, []
        for index, (batch, carry) in enumerate(zip(batches, carries, strict=True)):
            last = index + 1 == len(batches)
            batch = to_device(batch, self.accelerator)
            with (
                shallow.applied(self.model) if shallow else nullcontext(),
                nullcontext() if last else self.accelerator.no_sync(self.wrapped),
                nullcontext() if neural is None else neural.applied(self.step),
            ):
                if self.reuse is not None and shallow is None:
                    prediction = self.reuse.predict(batch)
                else:
                    prediction = self.wrapped(
                        batch.inputs,
                        carry=None if batch.begins else carry,
                        **({"states": states} if states else {}),
                    )
                loss = self._loss(prediction, batch.targets)
                total = scale * loss
                value += float(total.detach())
                if stabiliser is not None:
                    extra = stabiliser.extra(
                        self.step,
                        prediction.solutions,
                        partial(self._early, prediction, batch, scale),
                        share=batch.samples * self.accelerator.num_processes / self.recipe.rows,
                        part=self.part.cut(index, len(batches)),
                        penalised=penalised,
                    )
                    if extra is not None:
                        total = total + extra
                        added += float(extra.detach())
                if last:
                    self._check_finite(value, added)
                self.accelerator.backward(total)
            self.tally.add(sums_of(self.model, self.task, prediction, batch.targets, loss))
            if shallow is None:
                self.tally.add_solves(prediction.solutions)
            solutions += prediction.solutions
            self.carry.append(checkpoint.copied(prediction.carry))
        limit = math.inf if self.recipe.clip is None else self.recipe.clip
        length = self.accelerator.clip_grad_norm_(self.model.parameters(), limit)
        scaled = self.accelerator.scaler is not None  # then the optimiser skips such a step itself
        if length is not None and not scaled and not math.isfinite(float(length)):
            raise self._diverged("the gradient is not finite")
        self.optimiser.step()
        with torch.no_grad():
            self.model.constrain()
        self.optimiser.zero_grad()
        if stabiliser is not None:
            stabiliser.observe(self.step, solutions)
        self.step += 1
        self.seconds += time.perf_counter() - start

    def _loss(self, prediction: Prediction, targets: Any) -> Tensor:
        """Return the loss of a prediction, the sum over its units."""
        return loss_of(self.model, self.task, prediction, targets, self.accelerator)

    def _early(
        self, prediction: Prediction, batch: Batch, scale: float, states: Sequence[Any]
    ) -> Tensor:
        """Return `scale` times the loss of what is read from earlier states, one of each solve."""
        with self.accelerator.autocast():
            output = output_at(self.model, states, batch.inputs)
        return scale * self._loss(prediction._replace(output=output, auxiliary=()), batch.targets)

    def _mean_loss(self, batch: Batch, carry: Any) -> Tensor:
        """Return the mean loss of a batch, by a forward of its own."""
        with self.accelerator.autocast():
            prediction = self.model(batch.inputs, carry=carry)
        return self._loss(prediction, batch.targets) / max(1, self.task.units(batch.targets))

    def _mean(self, value: float) -> float:
        """Return the mean of a number over all processes."""
        return self._total(value)[0] / self.accelerator.num_processes

    def _total(self, *values: float) -> Sequence[float]:
        """Return the sums of some numbers over all processes."""
        if self.accelerator.num_processes == 1:
            return values
        own = torch.tensor(values, dtype=torch.float64, device=self.accelerator.device)
        total: Any = self.accelerator.reduce(own, "sum")
        return total.tolist()

    def _check_finite(self, value: float, added: float) -> None:
        """Raise Diverged on all processes if the loss or penalty of any of them is not finite.

        Called before they synchronise in backward, where one that had ended would block the others.
        """
        names = "the loss", "the sum of the regulariser and the correction"
        for name, each in zip(names, self._total(value, added), strict=True):
            if not math.isfinite(each):
                raise self._diverged(f"{name} is {each}")

    def _diverged(self, what: str) -> Diverged:
        """Return the error that ends training before a step that would ruin the weights."""
        return Diverged(
            f"{what} at step {self.step + 1}: a lower optimiser.lr or a clip may help, in a new "
            "run (--out)"
        )

    # --- the checkpoint ---------------------------------------------------------------------------

    def save(self, folder: Folder) -> None:
        """Write a checkpoint and, at the end of an epoch, the weights.

        Raises:
            OSError: they could not be written; the previous files are untouched.
            Elsewhere: the main process could not write them.
        """
        own = {
            "random": randomness.random_state(),
            "tally": self.tally.state(),
            "stabiliser": None if self.stabiliser is None else self.stabiliser.state(),
            "audit": None if self.audit is None else auditing.state(self.audit),
            "carry": checkpoint.on_cpu(self.carry),
            **({} if self.reuse is None else {"reuse": self.reuse.state()}),
            **({} if self.neural is None else {"neural": self.neural.state()}),
        }
        processes, scaler = gather_object([own]), self.accelerator.scaler
        with agreed(self.accelerator):
            if not self.accelerator.is_main_process:
                return
            folder.checkpoints.save(
                self.step,
                {
                    "recipe": recipes.decisive(self.recipe),
                    "data": self.task.checksum,
                    "seconds": self.seconds,
                    "metrics": self.records,
                },
                self.model.state_dict(),
                {
                    "optimiser": self.optimiser.state_dict(),
                    "processes": processes,
                    **({} if scaler is None else {"scaler": scaler.state_dict()}),
                },
                keep=self.recipe.keep,
            )
            if self.step % self.steps_per_epoch == 0:
                save_weights(folder.weights, self.model)

    def restore(
        self, folder: Folder, warn: Callable[[str], object] = print
    ) -> checkpoint.Checkpoint | None:
        """Restore a run from its newest intact checkpoint, or to its start if there is none yet.

        Args:
            folder: of the run.
            warn: called with a sentence about each damaged checkpoint.

        Returns:
            The checkpoint; None if there is none yet.

        Raises:
            RunError: it was saved by another number of processes, on other data, or under a
                recipe with another result; or its checkpoints are missing.
            CheckpointError: they are damaged.
        """
        found = folder.checkpoints.newest(warn)
        if found is None:
            folder.check_untrained()
            return None
        folder.check_data(self.task)
        lines = recipes.differences(found.about["recipe"], recipes.decisive(self.recipe))
        if lines:
            raise RunError(f"{found.path} belongs to a run of another recipe ({'; '.join(lines)})")
        if found.about["data"] != self.task.checksum:
            raise RunError(f"{found.path} belongs to a run on other data ({found.about['data']})")
        processes = found.parts["processes"]
        if len(processes) != self.accelerator.num_processes:
            raise RunError(
                f"the run was started with {len(processes)} processes and cannot be resumed "
                f"with {self.accelerator.num_processes}"
            )
        mine = processes[self.accelerator.process_index]
        try:
            self.model.load_state_dict(found.model)
            self.optimiser.load_state_dict(found.parts["optimiser"])
            if self.accelerator.scaler is not None:
                self.accelerator.scaler.load_state_dict(found.parts["scaler"])
            self.step, self.seconds = found.step, found.about["seconds"]
            self.records = found.about["metrics"]
            self.tally = Tally.restore(mine["tally"])
            self.carry = to_device(mine["carry"], self.accelerator)
            if self.stabiliser is not None:
                self.stabiliser.restore(mine["stabiliser"])
            if self.audit is not None:
                auditing.restore(self.audit, mine["audit"])
            if self.reuse is not None:
                self.reuse.restore(mine["reuse"])
            if self.neural is not None:
                self.neural.restore(mine["neural"])
            randomness.set_random_state(mine["random"])
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise checkpoint.CheckpointError(
                f"{found.path} does not fit the model and the optimiser of this run, or is of "
                f"another version of equilibria ({reason})"
            ) from None
        return found
