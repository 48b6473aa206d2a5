"""The training loop."""

from __future__ import annotations

import hashlib
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import gather_object
from rich.console import Console

from equilibria.solve import SolveWarning
from equilibria.tasks import Batch, Task
from equilibria.train import checkpoint, evaluation, files
from equilibria.train import recipe as recipes
from equilibria.train.evaluation import accelerator as accelerator_of
from equilibria.train.judge import Judge
from equilibria.train.loggers import JsonLines, TensorBoard, Terminal
from equilibria.train.recipe import Recipe
from equilibria.train.run import Folder, RunError
from equilibria.train.signals import Interrupted, stop_signal
from equilibria.train.step import Step, TrainingError
from equilibria.train.tally import Tally

__all__ = ["Interrupted", "Probe", "Stop", "Trainer", "TrainingError", "train"]

Probe = Callable[["Trainer"], dict[str, Any]]
"""Measures something after each epoch; what it returns is in the epoch's metrics, under "probe"."""

Stop = Callable[[], bool]
"""Tells after each step, and after each depth at which memory is measured, whether to save and stop
there, as a signal would."""


def train(
    recipe: Recipe,
    path: Path,
    *,
    data_dir: Path | None = None,
    resume: bool = False,
    console: Console | None = None,
    probe: Probe | None = None,
    stop: Stop | None = None,
) -> None:
    """Train a model as `recipe` says and leave the run in the folder `path`.

    Under `torchrun` or `accelerate launch` all processes call this; the first one writes.

    Args:
        recipe: what to do.
        path: the run folder, which must not exist yet, or be a run of this recipe under `resume`.
        data_dir: folder to look for data sets in, before EQUILIBRIA_DATA.
        resume: go on from the checkpoint in the folder; a finished run is left as it is.
        console: where to write; None for the standard output.
        probe: measures something more after each epoch.
        stop: tells when to stop.

    Raises:
        RunError: the folder exists, or cannot be resumed with this recipe.
        CheckpointError: the checkpoint is damaged, or of another run.
        TrainingError: the loss is not finite any more.
        ODEError: a neural ODE cannot be integrated any more.
        Interrupted: a signal or `stop` ended the run; it was saved.
    """
    folder = Folder(path)
    if resume:
        folder.read_recipe()  # what is no run is said before any data are read
    accelerator = accelerator_of(recipe.precision)
    console = (console or Console()) if accelerator.is_main_process else Console(quiet=True)
    if accelerator.is_main_process and not resume:
        folder.check_free()
    with accelerator.main_process_first():  # which downloads what is missing
        task = recipe.task.load(data_dir)
    if resume:
        folder.check_same(completed(recipe, task))
    fresh = not (resume and folder.checkpoint.exists())
    begins = recipe.initialisation
    if fresh and begins is not None and begins.radius is not None:
        console.print(
            f"Looking for the scale of the recurrent weights that gives a spectral radius of "
            f"{begins.radius:g} on the first batch ...",
            markup=False,
        )
    trainer = Trainer(recipe, task, accelerator, probe=probe, stop=stop, fresh=fresh)
    if accelerator.is_main_process and not resume:
        folder.create(trainer.recipe)
    trainer.fit(folder, console, resume=resume)
    measured = True
    if accelerator.is_main_process:
        with console.status("Measuring the memory of a training step ..."):
            measured = trainer.judge.measure(folder, console, stop or (lambda: False))
    accelerator.wait_for_everyone()
    accelerator.end_training()
    if not measured:
        raise Interrupted(
            f"stopped before the memory of a training step was measured at all depths; the model "
            f"is trained: go on with: equilibria train {folder.recipe} --out {path} --resume"
        )
    console.print(
        f"The run is in {path}. Next: equilibria report {path}", soft_wrap=True, markup=False
    )


def completed(recipe: Recipe, task: Task) -> Recipe:
    """Return the recipe with what its model leaves to the data filled in.

    Raises:
        ValueError: the model does not fit the data.
    """
    return replace(recipe, model=task.complete(recipe.model))


class Trainer:
    """A model, its optimiser, and where in the data they are.

    Args:
        recipe: what to do.
        task: the recipe's task.
        accelerator: device, processes and precision.
        probe: measures something more after each epoch.
        stop: tells when to stop.
        fresh: the run begins here; otherwise it is restored from a checkpoint, and the weights
            need not begin as the recipe says.

    Raises:
        TrainingError: the batches cannot be cut from the data or shared among the processes; or
            the recipe asks for a spectral radius that the cell cannot have.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        accelerator: Accelerator,
        *,
        probe: Probe | None = None,
        stop: Stop | None = None,
        fresh: bool = True,
    ) -> None:
        self.recipe, self.task, self.accelerator = completed(recipe, task), task, accelerator
        self.probe, self.stop = probe, stop
        try:
            self.feed = task.feed(recipe.batch_size, recipe.seed)
        except ValueError as error:
            raise TrainingError(str(error)) from None
        if recipe.batch_size % accelerator.num_processes:
            raise TrainingError(
                f"batch_size {recipe.batch_size} cannot be shared equally by "
                f"{accelerator.num_processes} processes"
            )
        if recipe.precision == "fp16" and accelerator.device.type == "cpu":
            raise TrainingError("precision fp16 needs a GPU; on a CPU there is bf16")
        if recipe.pretrain is not None and recipe.pretrain.steps >= self.steps:
            raise TrainingError(
                f"pretrain.steps is {recipe.pretrain.steps} and the run has {self.steps} steps: it "
                "would never solve for a fixed point; lower pretrain.steps or raise epochs"
            )
        self.part = evaluation.part_of(accelerator)
        self.stepper = Step(self.recipe, task, accelerator, self.steps, fresh=fresh)
        self.model, self.stabiliser = self.stepper.model, self.stepper.stabiliser
        self.judge = Judge(self.stepper)
        self.step = 0
        self.carry: Any = None
        self.tally = Tally()
        self.seconds = 0.0

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch: of a pass over the data, or as many as the recipe says."""
        return self.recipe.epoch_steps or self.feed.steps

    @property
    def steps(self) -> int:
        """Steps of the whole run."""
        return self.recipe.epochs * self.steps_per_epoch

    def fit(self, folder: Folder, console: Console, *, resume: bool = False) -> None:
        """Train until the recipe's last epoch, and evaluate; see `train`."""
        main = self.accelerator.is_main_process
        if resume and not folder.checkpoint.exists():
            folder.check_untrained()
        elif resume:
            folder.check_data(self.task.checksum)
            self.restore(checkpoint.load_checkpoint(folder.checkpoint), folder.checkpoint)
            if self.step == self.steps and folder.evaluation.exists():
                console.print(
                    f"{folder.path} is finished: there is nothing to resume", markup=False
                )
                return
        if self.step == 0 and main:
            if self.stepper.beginning is not None:
                console.print(f"Recurrent weights: {self.stepper.beginning}", markup=False)
            files.write_json(folder.info, self.judge.describe())
            self.task.save(folder.path)
        epochs = self.step // self.steps_per_epoch
        loggers = [JsonLines(folder, epochs), TensorBoard(folder, self.step)] if main else []
        terminal = Terminal(console, self.recipe.epochs, self.steps_per_epoch, self.task)
        try:
            with (
                stop_signal(self.accelerator.num_processes == 1) as stopped,
                warnings.catch_warnings(),
            ):
                # Shares of failed backward solves are logged; a warning a step would bury them.
                warnings.simplefilter("ignore", SolveWarning)
                while self.step < self.steps:
                    self.train_step()
                    epoch, position = divmod(self.step, self.steps_per_epoch)
                    if position:
                        terminal.step(epoch + 1, position, self.tally, self.seconds)
                    else:
                        record = self.finish_epoch()
                        for logger in (*loggers, terminal):
                            logger.epoch(record)
                    ends = bool(stopped) or (self.stop is not None and self.stop())
                    every = self.recipe.save_every
                    if position == 0 or ends or (every and self.step % every == 0):
                        self.save(folder)
                    if ends and self.step < self.steps:
                        raise Interrupted(
                            f"stopped in epoch {epoch + 1} after step {self.step} of {self.steps}; "
                            f"it is saved: go on with: equilibria train {folder.recipe} "
                            f"--out {folder.path} --resume"
                        )
        finally:
            for logger in (*loggers, terminal):
                logger.close()
        self.judge.conclude(folder, console, self.step)

    def train_step(self) -> None:
        """Take one step of the optimiser on the next batch.

        Raises:
            TrainingError: the loss or the gradient is not finite.
        """
        start = time.perf_counter()
        self.carry = self.stepper.take(self.step, self.batch(), self.carry, self.tally)
        self.step += 1
        self.seconds += time.perf_counter() - start

    def batch(self) -> Batch:
        """Return this process's part of the next batch."""
        return self.feed.batch(self.step, self.part)

    def finish_epoch(self) -> dict[str, Any]:
        """Evaluate, and return the metrics of the epoch that ends here."""
        parts = gather_object([(self.tally.state(), asdict(self.stabiliser.counts))])
        tally = Tally.total(Tally.restore(state) for state, _ in parts)
        record = {
            "epoch": self.step // self.steps_per_epoch,
            "step": self.step,
            "lr": self.stepper.optimiser.param_groups[0]["lr"],
            "seconds": round(self.seconds, 3),
            self.task.unit: tally.units,
            "train": tally.summary(self.task.figures),
            **self.stabiliser.summary(counts for _, counts in parts),
            self.task.judged: self.judge.evaluate(self.task.judged, self.step),
        }
        if (radius := self.judge.radius(self.step)) is not None:
            record["spectral_radius"] = radius
        if self.probe is not None:
            state = checkpoint.random_state()  # a probe leaves the run as it is
            record["probe"] = self.probe(self)
            checkpoint.set_random_state(state)
        self.tally, self.seconds = Tally(), 0.0
        self.stabiliser.reset()
        return record

    def digest(self) -> str:
        """Return what tells the checkpoints of this run from those of others."""
        text = recipes.to_yaml(self.recipe) + self.task.checksum
        return hashlib.sha256(text.encode()).hexdigest()

    def save(self, folder: Folder) -> None:
        """Write a checkpoint and, at the end of an epoch, the weights.

        Raises:
            OSError: they could not be written; what was there before is untouched.
        """
        state = {
            "random": checkpoint.random_state(),
            "tally": self.tally.state(),
            "stabiliser": self.stabiliser.state(),
            "carry": checkpoint.on_cpu(self.carry),
        }
        processes = gather_object([state])
        if not self.accelerator.is_main_process:
            return
        checkpoint.save_checkpoint(
            folder.checkpoint,
            {
                "run": self.digest(),
                "step": self.step,
                "seconds": self.seconds,
                **self.stepper.state(),
                "processes": processes,
            },
        )
        if self.step % self.steps_per_epoch == 0:
            checkpoint.save_weights(folder.weights, self.model)

    def restore(self, content: dict[str, Any], path: Path) -> None:
        """Go back to where a checkpoint was saved.

        Args:
            content: of the checkpoint.
            path: its file, for messages.

        Raises:
            RunError: it was saved by another number of processes.
            CheckpointError: it is of another run.
        """
        try:
            if content["run"] != self.digest():
                raise ValueError("its recipe or its data are others")
            processes = content["processes"]
            if len(processes) != self.accelerator.num_processes:
                raise RunError(
                    f"the run was started with {len(processes)} processes and cannot be resumed "
                    f"with {self.accelerator.num_processes}"
                )
            mine = processes[self.accelerator.process_index]
            self.stepper.restore(content)
            self.step, self.seconds = content["step"], content["seconds"]
            self.tally = Tally.restore(mine["tally"])
            self.carry = evaluation.to_device(mine["carry"], self.accelerator)
            self.stabiliser.restore(mine["stabiliser"])
            checkpoint.set_random_state(mine["random"])
        except RunError:
            raise
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise checkpoint.CheckpointError(
                f"{path} is of another run, or of another version of equilibria ({reason})"
            ) from None
