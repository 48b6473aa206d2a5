"""The state of a training run: its steps, the record of an epoch, its checkpoint."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, convert_to_fp32, gather_object
from torch import Tensor, distributed
from torch.utils import _pytree as pytree

from equilibria import draws
from equilibria.run import checkpoint, dealing, evaluation
from equilibria.run import recipe as recipes
from equilibria.run.alternating import Alternation
from equilibria.run.checkpoint import Background
from equilibria.run.dealing import deal
from equilibria.run.evaluation import evaluating, loss_of, output_at, sums_of, to_device
from equilibria.run.initialisation import Beginning, Initialisation, ShallowStart
from equilibria.run.models import EquilibriumModel, Model, Prediction
from equilibria.run.processes import agreed, random_state, seed_all, set_random_state
from equilibria.run.recipe import Recipe
from equilibria.run.reusing import Reuse
from equilibria.run.run import Folder, RunError
from equilibria.run.sharding import Sharding, extent
from equilibria.run.stabiliser import Stabiliser
from equilibria.run.tally import Tally, throughput
from equilibria.run.tasks import Batch, Part, Task
from equilibria.run.transfer import Transfer, transfer
from equilibria.run.weights import misfit, write_weights
from equilibria.stability import AdaptiveAdjoint, AdjointAudit

__all__ = [
    "Diverged",
    "Probe",
    "Trainer",
    "TrainingError",
    "seed_all",
]

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
        taken: what the run began with of another's weights; None if the recipe names none. If the
            model is sharded, only the first process has this and `beginning`.
        stabiliser: the regulariser and the correction; None if the recipe has neither.
        reuse: the states of all samples, from which steps go on; None where steps solve.
        neural: the learned solver of the steps; None where the recipe has none.
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
        self.beginning: Beginning | None = None
        self.taken: Transfer | None = None
        build = partial(self._build, fresh)
        self.sharding = self._shard(build)
        self.model: Model = build() if self.sharding is None else self.sharding.model
        optimiser = recipe.optimiser.build(self.model)  # of the shares, where there are such
        if self.sharding is None:
            self.wrapped, self.optimiser = accelerator.prepare(self.model, optimiser)
        else:
            self.wrapped, self.optimiser = self._predict, accelerator.prepare_optimizer(optimiser)
        self.rates = [group["lr"] for group in optimiser.param_groups]
        seed_all(recipe.seed + accelerator.process_index)  # for draws that are not keyed to samples
        self.stabiliser = None
        if recipe.regulariser is not None or recipe.correction is not None:
            self.stabiliser = Stabiliser(recipe, self.segment, accelerator)
        self.reuse = self._remember() if recipe.reuse else None
        self.neural = self._alternate() if recipe.neural is not None else None
        self.notes: list[str] = []
        self.background = Background()
        self._group: Any = None  # by which to agree on what is written while training goes on
        if recipe.checkpoint.async_ and self.sharding is not None:
            self._group = distributed.new_group(backend="gloo")
        self.audit = None
        if isinstance(recipe.adjoint, AdaptiveAdjoint):
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

    def _empty(self) -> Model:
        """Return the model with the weights that it is built with."""
        seed_all(self.recipe.seed)
        return self.task.model(self.recipe.model, **self.recipe.layer())

    def _build(self, fresh: bool) -> Model:
        """Return the model with the weights that the run starts from."""
        recipe, model = self.recipe, self._empty()
        if fresh and recipe.initialisation is not None:
            self.beginning = self._begin(recipe.initialisation, model)
        if fresh and recipe.init_from is not None:
            self.taken = transfer(recipe.init_from, model)
        return model

    def _shard(self, build: Callable[[], Model]) -> Sharding | None:
        """Build the model, sharded across the processes, where the recipe says so."""
        recipe, accelerator = self.recipe, self.accelerator
        keep = recipe.regulariser is not None or recipe.correction is not None
        try:
            size = extent(recipe.parallel, recipe.shard, accelerator.num_processes)
            if size == 1:
                return None
            return Sharding(build, self._empty, accelerator, size, keep=keep, trial=self._try)
        except ValueError as error:
            raise TrainingError(str(error)) from None

    @torch.no_grad()
    def _try(self, model: Model) -> None:
        """Evaluate a model and its loss on one row, by a shallow network: any would do."""
        device = next(model.parameters()).device
        batch = self.feed.batch(self.step, Part(0, self.recipe.rows))
        batch = pytree.tree_map_only(Tensor, lambda x: x.to(device), batch)
        shallow = ShallowStart(layers=1).applied(model) if self.recipe.solver else None
        with shallow or nullcontext(), self.accelerator.autocast(), evaluating(model):
            loss_of(model, self.task, model(batch.inputs), batch.targets, self.accelerator)

    def _predict(self, inputs: Any, **options: Any) -> Prediction:
        """Call the model as Accelerate would have it called, if it had wrapped it."""
        with self.accelerator.autocast(), warnings.catch_warnings():
            # Nobody changes in place what the model returns.
            warnings.filterwarnings(
                "ignore", "FSDP2-wrapped module .* returned a view", UserWarning
            )
            prediction: Any = self.model(inputs, **options)
        if self.recipe.precision != "float32":
            prediction = convert_to_fp32(prediction)
        return prediction

    def gathered(self) -> AbstractContextManager[None]:
        """Hold all parameters whole for a block; see `Sharding.gathered`."""
        return nullcontext() if self.sharding is None else self.sharding.gathered()

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

    def _begin(self, asked: Initialisation, model: Model) -> Beginning:
        """Fill the recurrent weights as the recipe says, identically on all processes."""
        try:
            return asked.apply(
                model, lambda: to_device(self.feed.batch(0).inputs, self.accelerator)
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
        with shallow.applied(self.model) if shallow else nullcontext(), self.gathered():
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
        with self.gathered():
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
            "throughput": throughput(
                tallies,
                tally,
                self.seconds,
                unit=self.task.unit,
                accumulate=self.recipe.accumulate,
            ),
            "train": tally.summary(self.task),
            **(self.stabiliser.finish_epoch() if self.stabiliser is not None else {}),
            **({} if self.audit is None else {"audit": dealing.audit_state(self.audit)}),
            **({} if self.reuse is None else self.reuse.finish_epoch()),
            **({} if self.neural is None else self.neural.finish_epoch()),
            self.task.eval_split: self.evaluate(self.task.eval_split),
        }
        if (radius := self.radius()) is not None:
            record["spectral_radius"] = radius
        if self.probe is not None:
            state = random_state()  # a probe leaves the run as it is
            with self.gathered():
                record["probe"] = self.probe(self)
            set_random_state(state)
        self.records.append(record)
        self.tally, self.seconds = Tally(), 0.0
        return record

    # --- a step -----------------------------------------------------------------------------------

    def batch(self, index: int = 0) -> Batch:
        """Return a micro-batch of the next step: this process's share of the batch, or a part."""
        return self.feed.batch(self.step, self.part.cut(index, self.recipe.accumulate))

    def _drawing(self, what: str, index: int = 0) -> AbstractContextManager[None]:
        """Key what a block draws for a micro-batch to the step and to the rows of its batch."""
        rows = self.part.cut(index, self.recipe.accumulate).of(self.recipe.rows)
        return draws.keyed(f"{what} {self.recipe.seed} {self.step}", rows)

    def _augmented(self, index: int) -> Batch:
        """Return a micro-batch of the next step, augmented."""
        with self._drawing("augmentation", index):
            return self.task.augment(self.batch(index))

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
        batches = [self._augmented(k) for k in range(self.recipe.accumulate)]
        (units,) = self._total(sum(self.task.units(batch.targets) for batch in batches))
        # DDP takes the mean over the processes.
        scale = self.accelerator.num_processes / max(units, 1)
        carries, self.carry = self.carry or [None] * len(batches), []
        shallow = self._shallow(self.step)
        stabiliser = None if shallow else self.stabiliser
        neural = None if shallow else self.neural
        if neural is not None and neural.due(self.step):
            with self.gathered():
                neural.learn()
        states = stabiliser.states() if stabiliser else ()
        if self.audit is not None and not shallow:
            batch, before = to_device(batches[0], self.accelerator), carries[0]
            carry = None if batch.begins else before
            gathered = self.gathered() if self.audit.due(self.step) else nullcontext()
            with gathered, self._drawing("audit"):
                self.audit(self.step, partial(self._mean_loss, batch, carry))
        value, added, solutions = 0.0, 0.0, []
        for index, (batch, carry) in enumerate(zip(batches, carries, strict=True)):
            last = index + 1 == len(batches)
            batch = to_device(batch, self.accelerator)
            with (
                shallow.applied(self.model) if shallow else nullcontext(),
                self._synchronised(last),
                nullcontext() if neural is None else neural.applied(self.step),
                self._drawing("masks", index),
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
                    # By a key of their own: the masks are the same without a penalty.
                    with self._drawing("probes", index):
                        extra = stabiliser.extra(
                            self.step,
                            prediction.solutions,
                            partial(self._early, prediction, batch, scale),
                            share=batch.samples * self.accelerator.num_processes / self.recipe.rows,
                            penalised=penalised,
                        )
                    if extra is not None:
                        total = total + extra
                        added += float(extra.detach())
                # Before backward, which lets go of parameters that are shared out.
                if prediction.auxiliary:  # the loss that is shown is that of the answer
                    with torch.no_grad():
                        loss = self._loss(prediction._replace(auxiliary=()), batch.targets)
                sums = sums_of(self.model, self.task, prediction, batch.targets, loss)
                if last:
                    self._check_finite(value, added)
                self.accelerator.backward(total)
            self.tally.add(sums)
            if shallow is None:
                self.tally.add_solves(prediction.solutions)
            solutions += prediction.solutions
            self.carry.append(checkpoint.copied(prediction.carry))
        length = self._clip()
        scaled = self.accelerator.scaler is not None  # then the optimiser skips such a step itself
        if length is not None and not scaled and not math.isfinite(length):
            raise self._diverged("the gradient is not finite")
        self.optimiser.step()
        if self.sharding is not None:
            self.sharding.constrain()
        else:
            with torch.no_grad():
                self.model.constrain()
        self.optimiser.zero_grad()
        if stabiliser is not None:
            stabiliser.observe(self.step, solutions)
        self.step += 1
        self.seconds += time.perf_counter() - start

    @contextmanager
    def _synchronised(self, last: bool) -> Iterator[None]:
        """Let gradients be added up over the processes with those of the last micro-batch alone."""
        if self.sharding is not None:
            self.sharding.share_buffers()
            self.sharding.synchronise(last)
            yield
            return
        with nullcontext() if last else self.accelerator.no_sync(self.wrapped):
            yield

    def _clip(self) -> float | None:
        """Scale the gradient down as the recipe says; return the length that it had."""
        limit = math.inf if self.recipe.clip is None else self.recipe.clip
        if self.sharding is None:
            length = self.accelerator.clip_grad_norm_(self.model.parameters(), limit)
            return None if length is None else float(length)
        self.accelerator.unscale_gradients()
        return self.sharding.clip(limit)

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

        By `checkpoint.async` they are written in the background, as `settle` makes sure.

        Raises:
            OSError: they, or those before in the background, could not be written; the previous
                files are untouched.
            Elsewhere: another process could not write them.
        """
        self.settle()
        own = {
            "random": random_state(),
            "tally": self.tally.state(),
            "stabiliser": None if self.stabiliser is None else self.stabiliser.state(),
            "audit": None if self.audit is None else dealing.audit_state(self.audit),
            "carry": checkpoint.on_cpu(self.carry),
            **({} if self.reuse is None else {"reuse": self.reuse.state()}),
            **({} if self.neural is None else {"neural": self.neural.state()}),
        }
        processes, scaler = gather_object([own]), self.accelerator.scaler
        about = {
            "recipe": recipes.decisive(self.recipe),
            "data": self.task.checksum,
            "seconds": self.seconds,
            "metrics": list(self.records),
        }
        parts = {
            "processes": processes,
            **({} if scaler is None else {"scaler": scaler.state_dict()}),
        }
        if self.recipe.checkpoint.async_:
            parts = checkpoint.copied(parts)
        if self.sharding is None:
            self._save_whole(folder, about, parts)
        else:
            self._save_shares(folder, about, parts, self.sharding)

    @property
    def ends_epoch(self) -> bool:
        """Whether the latest step is the last of an epoch."""
        return self.step % self.steps_per_epoch == 0

    def _save_whole(self, folder: Folder, about: Any, parts: dict[str, Any]) -> None:
        """Write a checkpoint by the main process, which has everything."""
        with agreed(self.accelerator):
            if not self.accelerator.is_main_process:
                return
            step, ends, later = self.step, self.ends_epoch, self.recipe.checkpoint.async_
            state, optimiser = self.model.state_dict(), self.optimiser.state_dict()
            if later:
                state, optimiser = checkpoint.copied(checkpoint.on_cpu((state, optimiser)))

            def write() -> None:
                keep, every = self.recipe.checkpoint.keep, {"optimiser": optimiser, **parts}
                folder.checkpoints.save(step, about, state, every, keep=keep)
                if ends:
                    write_weights(folder.weights, state)

            if later:
                self.background.submit(write)
            else:
                write()

    def _save_shares(
        self, folder: Folder, about: Any, parts: dict[str, Any], sharding: Sharding
    ) -> None:
        """Write a checkpoint by all processes, each its share."""
        from equilibria.run import shares

        step, ends, main = self.step, self.ends_epoch, self.accelerator.is_main_process
        tensors, parts["optimiser"] = shares.collect(self.model, self.optimiser)
        whole = sharding.whole_state() if ends else {}
        begun: list[Any] = [None]
        with agreed(self.accelerator):
            if main:
                begun = [folder.checkpoints.begin(step)]
        broadcast_object_list(begun)

        def complete(described: Any, sums: Any) -> None:
            known, keep = {**about, "shares": described}, self.recipe.checkpoint.keep
            with self.background.placing():
                folder.checkpoints.complete(begun[0], step, known, parts, sums, keep=keep)
                if ends:
                    write_weights(folder.weights, whole)

        with agreed(self.accelerator):  # torch has let it fail on all: this is for the message
            self.background.write = shares.write(tensors, begun[0], complete, self._group)

    def settle(self) -> None:
        """Wait until a checkpoint that is being written in the background is there.

        Raises:
            OSError, Elsewhere: it could not be written.
        """
        if not self.recipe.checkpoint.async_:
            return
        with agreed(self.accelerator):
            self.background.settle()

    def close(self) -> None:
        """Wait for a checkpoint that is still being written in the background; see `Background`.

        Shares need all processes, one of which may be gone: their time is limited.
        """
        self.background.close(math.inf if self.sharding is None else checkpoint.PATIENCE)

    def weights(self) -> Mapping[str, Tensor]:
        """Return all parameters and buffers: whole on the main process, whatever on the others.

        Where parameters are shared out, all processes call this.
        """
        return self.model.state_dict() if self.sharding is None else self.sharding.whole_state()

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
            RunError: it was saved on other data, or under a recipe with another result; or its
                checkpoints are missing.
            CheckpointError: they are damaged.
        """
        found = folder.checkpoints.newest(
            warn, part=self.part, gather=lambda each: gather_object([each])
        )
        if found is None:
            folder.check_untrained()
            return None
        folder.check_data(self.task)
        try:
            self._check_same(found)
            mine = self._share_of(found)
            self._fill(found)
            if self.accelerator.scaler is not None:
                self.accelerator.scaler.load_state_dict(found.parts["scaler"])
            self.step, self.seconds = found.step, found.about["seconds"]
            self.records = found.about["metrics"]
            self.tally = Tally.restore(mine["tally"])
            self.carry = to_device(mine["carry"], self.accelerator)
            if self.stabiliser is not None:
                self.stabiliser.restore(mine["stabiliser"])
            if self.audit is not None:
                dealing.restore_audit(self.audit, mine["audit"])
            if self.reuse is not None:
                self.reuse.restore(mine["reuse"])
            if self.neural is not None:
                self.neural.restore(mine["neural"])
            set_random_state(mine["random"])
        except RunError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise checkpoint.CheckpointError(
                f"{found.path} does not fit the model and the optimiser of this run, or is of "
                f"another version of equilibria ({reason})"
            ) from None
        return found

    def _check_same(self, found: checkpoint.Checkpoint) -> None:
        """Raise RunError if a checkpoint was saved on other data or by another recipe."""
        lines = recipes.differences(found.about["recipe"], recipes.decisive(self.recipe))
        if lines:
            raise RunError(f"{found.path} belongs to a run of another recipe ({'; '.join(lines)})")
        if found.about["data"] != self.task.checksum:
            raise RunError(f"{found.path} belongs to a run on other data ({found.about['data']})")

    def _share_of(self, found: checkpoint.Checkpoint) -> Any:
        """Return what a checkpoint has for this process."""
        processes, count = found.parts["processes"], self.accelerator.num_processes
        if len(processes) == count:
            return processes[self.accelerator.process_index]
        mine, notes = deal(
            processes, self.part, self.recipe.rows, seed=self.recipe.seed, step=found.step
        )
        before = f"{len(processes)} process{'es' * (len(processes) > 1)}"
        again = ": " + "; ".join(notes) if notes else ""
        self.notes = [f"Saved by {before}, continued by {count}{again}"]
        return mine

    def _fill(self, found: checkpoint.Checkpoint) -> None:
        """Give the model and the optimiser what a checkpoint has, whole or in shares."""
        described, optimiser = found.about.get("shares"), found.parts["optimiser"]
        if self.sharding is None and described is None:
            if wrong := misfit(found.model, self.model.state_dict(), "the recipe"):
                raise ValueError(wrong)
            self.model.load_state_dict(found.model)
            self.optimiser.load_state_dict(optimiser)
            return
        from equilibria.run import shares

        if described is not None:
            named = {chunk["file"] for each in described.values() for chunk in each["chunks"]}
            if strange := named - found.about["parts"].keys():
                raise ValueError(f"{min(strange)} is none of its files")
            source = shares.Files(found.path, described)
        else:
            names = {id(p): name for name, p in self.model.named_parameters()}
            order = [names[id(p)] for g in self.optimiser.param_groups for p in g["params"]]
            source, optimiser = shares.by_name(found.model, optimiser, order)
        shares.fill(source, optimiser, self.model, self.optimiser)
