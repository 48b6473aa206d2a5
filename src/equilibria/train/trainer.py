"""The training loop."""

from __future__ import annotations

import math
import random
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from rich.console import Console
from torch import Tensor

from equilibria.models import EquilibriumModel, Prediction
from equilibria.solve import SolveWarning
from equilibria.tasks import Task
from equilibria.train import files, memory
from equilibria.train.checkpoint import (
    load_checkpoint,
    random_state,
    save_checkpoint,
    save_weights,
    set_random_state,
)
from equilibria.train.evaluation import DEPTHS, evaluate, radius, share, to_device
from equilibria.train.evaluation import accelerator as accelerator_of
from equilibria.train.loggers import JsonLines, TensorBoard, Terminal
from equilibria.train.recipe import Recipe
from equilibria.train.run import Folder, RunError, environment
from equilibria.train.stabiliser import Stabiliser
from equilibria.train.tally import Tally


class TrainingError(RuntimeError):
    """Training cannot go on; the message says why."""


class Interrupted(RuntimeError):
    """Training was stopped by a signal and can be resumed; the message says how."""


def train(
    recipe: Recipe,
    path: Path,
    *,
    data_dir: Path | None = None,
    resume: bool = False,
    console: Console | None = None,
) -> None:
    """Train a model as `recipe` says and leave the run in the folder `path`.

    Under `torchrun` or `accelerate launch` all processes call this; the first one writes.

    Args:
        recipe: what to do.
        path: the run folder, which must not exist yet, or be a run of this recipe under `resume`.
        data_dir: folder to look for data sets in, before EQUILIBRIA_DATA.
        resume: go on from the checkpoint in the folder; a finished run is left as it is.
        console: where to write; None for the standard output.

    Raises:
        RunError: the folder exists, or cannot be resumed with this recipe.
        CheckpointError: the checkpoint is damaged.
        TrainingError: the loss is not finite any more.
        Interrupted: a signal stopped the run; it was saved.
    """
    folder = Folder(path)
    if resume:
        folder.check_same(recipe)
    accelerator = accelerator_of(recipe.precision)
    console = (console or Console()) if accelerator.is_main_process else Console(quiet=True)
    if accelerator.is_main_process and not resume:
        folder.check_free()
    with accelerator.main_process_first():  # which downloads what is missing
        task = recipe.task.load(data_dir)
    trainer = Trainer(recipe, task, accelerator)
    if accelerator.is_main_process and not resume:
        folder.create(recipe)
    trainer.fit(folder, console, resume=resume)
    if accelerator.is_main_process and not folder.memory.exists():
        with console.status("Measuring the memory of a training step ..."):
            trainer.measure(folder)
    console.print(
        f"The run is in {path}. Next: equilibria report {path}", soft_wrap=True, markup=False
    )
    accelerator.wait_for_everyone()
    accelerator.end_training()


class Trainer:
    """A model, its optimiser, and where in the data they are.

    Args:
        recipe: what to do.
        task: the recipe's task.
        accelerator: device, processes and precision.

    Raises:
        TrainingError: the batches cannot be cut from the samples or shared among the processes.
    """

    def __init__(self, recipe: Recipe, task: Task, accelerator: Accelerator) -> None:
        self.recipe, self.task, self.accelerator = recipe, task, accelerator
        processes = accelerator.num_processes
        self.steps_per_epoch = len(task.train) // recipe.batch_size
        if self.steps_per_epoch == 0:
            raise TrainingError(
                f"batch_size is {recipe.batch_size} but there are only {len(task.train)} samples"
            )
        if recipe.batch_size % processes:
            raise TrainingError(
                f"batch_size {recipe.batch_size} cannot be shared equally by {processes} processes"
            )
        if recipe.precision == "fp16" and accelerator.device.type == "cpu":
            raise TrainingError("precision fp16 needs a GPU; on a CPU there is bf16")
        _seed(recipe.seed)
        self.model: EquilibriumModel = task.model(recipe.model, **recipe.layer())
        optimiser = recipe.optimiser.build(self.model)
        self.rates = [group["lr"] for group in optimiser.param_groups]
        self.wrapped, self.optimiser = accelerator.prepare(self.model, optimiser)
        _seed(recipe.seed + accelerator.process_index)  # own dropout masks on each process
        self.step = 0
        self.order = torch.empty(0)
        self.tally = Tally()
        self.stabiliser = Stabiliser(recipe, self.steps, accelerator)
        self.seconds = 0.0

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
            self.restore(load_checkpoint(folder.checkpoint))
            if self.step == self.steps and folder.evaluation.exists():
                console.print(
                    f"{folder.path} is finished: there is nothing to resume", markup=False
                )
                return
        epochs = self.step // self.steps_per_epoch
        loggers = [JsonLines(folder, epochs), TensorBoard(folder, self.step)] if main else []
        terminal = Terminal(console, self.recipe.epochs, self.steps_per_epoch)
        if self.step == 0 and main:
            files.write_json(folder.info, self.describe())
        try:
            with (
                _stop_signal(self.accelerator.num_processes == 1) as stopped,
                warnings.catch_warnings(),
            ):
                # Shares of failed backward solves are logged; a warning a step would bury them.
                warnings.simplefilter("ignore", SolveWarning)
                while self.step < self.steps:
                    self.train_step()
                    epoch, position = divmod(self.step, self.steps_per_epoch)
                    if position:
                        terminal.step(epoch + 1, position, self.tally)
                    else:
                        record = self.finish_epoch()
                        for logger in (*loggers, terminal):
                            logger.epoch(record)
                    every = self.recipe.save_every
                    if position == 0 or stopped or (every and self.step % every == 0):
                        self.save(folder)
                    if stopped and self.step < self.steps:
                        raise Interrupted(
                            f"stopped in epoch {epoch + 1} after step {self.step} of {self.steps}; "
                            f"it is saved: go on with: equilibria train {folder.recipe} "
                            f"--out {folder.path} --resume"
                        )
        finally:
            for logger in (*loggers, terminal):
                logger.close()
        statuses = self.conclude(folder)["forward"]["status"]
        if statuses["CONVERGED"] < 0.99:
            ended = ", ".join(
                f"{100 * share:.1f} % {name}" for name, share in statuses.items() if share
            )
            console.print(
                f"Not all test samples reached their fixed point: {ended}. "
                f"See: equilibria doctor {folder.path}",
                style="yellow",
                markup=False,
            )

    def train_step(self) -> None:
        """Take one step of the optimiser on the next batch.

        Raises:
            TrainingError: the loss or the gradient is not finite.
        """
        start = time.perf_counter()
        factor = self.recipe.schedule.factor(self.step, self.steps)
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        inputs, targets = self.task.train[share(self.batch(), self.accelerator)]
        inputs = self.task.augment(inputs).to(self.accelerator.device)
        targets = targets.to(self.accelerator.device)
        prediction = cast(Prediction, self.wrapped(inputs, states=self.stabiliser.states()))
        solution = prediction.solution
        output = prediction.output.float()
        loss = self.task.loss(output, targets)
        value = float(loss.detach())
        if not math.isfinite(value):
            raise self.lost(f"the loss is {value}")

        def loss_of(state: Any) -> Tensor:
            with self.accelerator.autocast():
                early = self.model.readout(state)
            return self.task.loss(early.float(), targets)

        extra = self.stabiliser.extra(self.step, solution, loss_of)
        if extra is not None and not math.isfinite(float(extra.detach())):
            added = float(extra.detach())
            raise self.lost(f"what the regulariser and the correction add to the loss is {added}")
        self.accelerator.backward(loss if extra is None else loss + extra)
        limit = math.inf if self.recipe.clip is None else self.recipe.clip
        length = self.accelerator.clip_grad_norm_(self.model.parameters(), limit)
        scaled = self.accelerator.scaler is not None  # then the optimiser skips such a step itself
        if length is not None and not scaled and not math.isfinite(float(length)):
            raise self.lost("the gradient is not finite")
        self.optimiser.step()
        self.optimiser.zero_grad()
        correct = self.task.correct(output.detach(), targets)
        self.tally.add(value, correct, solution, solution.adjoint)
        self.stabiliser.observe(self.step, solution)
        self.step += 1
        self.seconds += time.perf_counter() - start

    def lost(self, what: str) -> TrainingError:
        """Return the error that ends training before a step that would ruin the weights."""
        return TrainingError(
            f"{what} at step {self.step + 1}. The weights and the checkpoint saved are from "
            "before; a lower optimiser.lr or a clip may help, in a new run (--out)"
        )

    def batch(self) -> Tensor:
        """Return which samples the next step takes, of all processes together.

        Each epoch has its own order, a function of the seed and the epoch alone; what is left over
        after the last full batch waits for another epoch.
        """
        epoch, position = divmod(self.step, self.steps_per_epoch)
        if position == 0 or len(self.order) == 0:
            generator = torch.Generator().manual_seed(1_000_003 * self.recipe.seed + epoch)
            self.order = torch.randperm(len(self.task.train), generator=generator)
        size = self.recipe.batch_size
        return self.order[position * size : (position + 1) * size]

    def finish_epoch(self) -> dict[str, Any]:
        """Evaluate, and return the metrics of the epoch that ends here."""
        parts = gather_object([(self.tally.state(), asdict(self.stabiliser.counts))])
        record = {
            "epoch": self.step // self.steps_per_epoch,
            "step": self.step,
            "lr": self.optimiser.param_groups[0]["lr"],
            "seconds": round(self.seconds, 3),
            "train": Tally.total(Tally.restore(tally) for tally, _ in parts).summary(),
            **self.stabiliser.summary(counts for _, counts in parts),
            "test": self.evaluate(),
            "spectral_radius": self.radius(),
        }
        self.tally, self.seconds = Tally(), 0.0
        self.stabiliser.reset()
        return record

    def evaluate(self, depths: tuple[int, ...] = ()) -> dict[str, Any]:
        """Return the model's figures on the test samples; see `evaluation.evaluate`."""
        return evaluate(
            self.model,
            self.task,
            self.task.test,
            self.accelerator,
            batch_size=self.recipe.eval_batch_size,
            depths=depths,
        )

    def radius(self) -> dict[str, float]:
        """Return the spectral radius at the first test samples; see `evaluation.radius`."""
        probes, _ = to_device(self.task.test, slice(self.recipe.probes), self.accelerator)
        return radius(self.model, probes)

    def conclude(self, folder: Folder) -> dict[str, Any]:
        """Write the weights and evaluation.json, and return what is in that."""
        result = {**self.evaluate(DEPTHS), "spectral_radius": self.radius()}
        if self.accelerator.is_main_process:
            save_weights(folder.weights, self.model)
            files.write_json(folder.evaluation, result)
        return result

    def measure(self, folder: Folder) -> None:
        """Write memory.json: the memory of a training step on the CPU, against depth."""
        inputs, targets = self.task.train[torch.arange(self.recipe.batch_size)]
        points = memory.measure(self.model.cpu(), inputs, targets, self.task.loss)
        files.write_json(folder.memory, [asdict(point) for point in points])

    def describe(self) -> dict[str, Any]:
        """Return what the result depends on beside the recipe."""
        count = sum(p.numel() for p in self.model.parameters())
        return {
            **environment(),
            "processes": self.accelerator.num_processes,
            "device": self.accelerator.device.type,
            "parameters": count,
            "data": self.task.checksum,
        }

    def save(self, folder: Folder) -> None:
        """Write a checkpoint and, at the end of an epoch, the weights.

        Raises:
            OSError: they could not be written; what was there before is untouched.
        """
        state = {
            "random": random_state(),
            "tally": self.tally.state(),
            "stabiliser": self.stabiliser.state(),
        }
        processes = gather_object([state])
        if not self.accelerator.is_main_process:
            return
        scaler = self.accelerator.scaler
        save_checkpoint(
            folder.checkpoint,
            {
                "step": self.step,
                "seconds": self.seconds,
                "model": self.model.state_dict(),
                "optimiser": self.optimiser.state_dict(),
                "scaler": scaler.state_dict() if scaler is not None else None,
                "processes": processes,
            },
        )
        if self.step % self.steps_per_epoch == 0:
            save_weights(folder.weights, self.model)

    def restore(self, checkpoint: dict[str, Any]) -> None:
        """Go back to where a checkpoint was saved.

        Raises:
            RunError: it was saved by another number of processes.
        """
        processes = checkpoint["processes"]
        if len(processes) != self.accelerator.num_processes:
            raise RunError(
                f"the run was started with {len(processes)} processes and cannot be resumed with "
                f"{self.accelerator.num_processes}"
            )
        mine = processes[self.accelerator.process_index]
        self.model.load_state_dict(checkpoint["model"])
        self.optimiser.load_state_dict(checkpoint["optimiser"])
        if self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(checkpoint["scaler"])
        self.step, self.seconds = checkpoint["step"], checkpoint["seconds"]
        self.tally = Tally.restore(mine["tally"])
        if "stabiliser" in mine:  # runs of earlier versions have none
            self.stabiliser.restore(mine["stabiliser"])
        set_random_state(mine["random"])


def _seed(seed: int) -> None:
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


@contextmanager
def _stop_signal(catch: bool) -> Iterator[list[int]]:
    """Collect the first interrupt or termination instead of dying of it; a second one kills.

    Several processes are not stopped in the same step, so there the launcher's signals kill, and
    a resume starts from the last checkpoint.
    """
    received: list[int] = []
    if not catch or threading.current_thread() is not threading.main_thread():
        yield received
        return

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)

    before = {each: signal.signal(each, receive) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield received
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
