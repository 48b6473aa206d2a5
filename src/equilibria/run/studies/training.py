"""Trainings that studies share: each is run once, and identified by what determines its result."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock
from rich.console import Console

from equilibria import files
from equilibria.run import evaluation
from equilibria.run import run as runs
from equilibria.run.loop import train
from equilibria.run.models.base import ModelError
from equilibria.run.recipe import Recipe
from equilibria.run.resume import restore
from equilibria.run.run import Folder, Run, RunError
from equilibria.run.step import Diverged
from equilibria.run.studies.identity import GENERATION, decides, digest
from equilibria.run.studies.results import Origin
from equilibria.run.tasks import Task
from equilibria.run.trainer import Probe, Trainer

RECORD = "study.json"
"""In the folder of a training, next to its run: origin, and how it ended."""


@dataclass(frozen=True)
class Training:
    """A recipe to train, and what is probed after each epoch.

    Args:
        recipe: what to do.
        minutes: estimate.
        probe: a frozen dataclass that is a `run.trainer.Probe`.
        after: a training whose weights this one begins with; it is run first.
    """

    recipe: Recipe
    minutes: float
    probe: Probe | None = None
    after: Training | None = None


@dataclass(frozen=True)
class Trained:
    """A finished training.

    Attributes:
        folder: its run folder.
        diverged: the message of a training that diverged, or whose model could no longer be
            evaluated; such a run has no evaluation.
        origin: commit, versions and hardware when it started.
        task: of its recipe, loaded.
    """

    folder: Folder
    diverged: str | None
    origin: Origin
    task: Task
    data_dir: Path | None = None

    @functools.cached_property
    def recipe(self) -> Recipe:
        """What was trained, completed from the data."""
        return self.folder.read_recipe()

    @functools.cached_property
    def metrics(self) -> list[dict[str, Any]]:
        """The record of each finished epoch."""
        return self.folder.read_metrics()

    @functools.cached_property
    def evaluation(self) -> Mapping[str, Any]:
        """Figures of the test split; empty where the training diverged."""
        return {} if self.diverged else json.loads(self.folder.evaluation.read_text("utf-8"))

    @functools.cached_property
    def info(self) -> Mapping[str, Any]:
        """Parameters, versions, hardware, source of the data."""
        return json.loads(self.folder.info.read_text("utf-8"))

    @property
    def seconds(self) -> float:
        """Of all training steps."""
        return sum(epoch["seconds"] for epoch in self.metrics)

    def load(self) -> Run:
        """Return the trained network with its data, in evaluation mode, on the CPU.

        Raises:
            RunError: it diverged before its weights were saved.
        """
        if not self.folder.weights.exists():
            raise RunError(f"{self.folder.path} has no weights: {self.diverged or 'remove it'}")
        return runs.load(self.folder.path, data_dir=self.data_dir)

    def trainer(self, *, trained: bool, before_end: int = 0) -> Trainer:
        """Return a trainer of the run: new, or as it ended, some steps before its last.

        It is past the shallow start, if the recipe has one.

        Args:
            trained: with the weights and the optimiser of the run's end.
            before_end: steps to leave.
        """
        recipe = self.recipe
        trainer = Trainer(recipe, self.task, evaluation.accelerator(recipe.precision))
        if trained:
            restore(trainer, self.folder)
            trainer.step = max(0, trainer.steps - before_end)
        trainer.step = max(trainer.step, trainer.shallow_steps)
        trainer.carry = None
        return trainer


class Store:
    """The folder of all shared trainings, with one subfolder per identity.

    Args:
        folder: where they are; created if missing.
        console: for progress.
        data_dir: folder to search for data sets before EQUILIBRIA_DATA.
        command: the command line, for the records.
    """

    def __init__(
        self, folder: Path, console: Console, data_dir: Path | None = None, command: str = ""
    ) -> None:
        self.folder, self.console, self.data_dir, self.command = folder, console, data_dir, command
        self._tasks: dict[str, Task] = {}

    def task(self, recipe: Recipe) -> Task:
        """Return a recipe's task, loaded once."""
        key = digest(decides(recipe)["task"])
        if key not in self._tasks:
            self._tasks[key] = recipe.task.load(self.data_dir)
        return self._tasks[key]

    def identity(self, training: Training, generation: int = GENERATION) -> str:
        """Return the checksum of what decides a training: recipe, probe, data and the core."""
        data = self.task(training.recipe).checksum
        decisive = [decides(training.recipe), training.probe, data]
        if training.after is not None:
            decisive.append(self.identity(training.after, generation))
        return digest(decisive, generation)

    def find(self, training: Training) -> Trained | None:
        """Return a finished training; None if it has yet to be run."""
        return self._read(self._folder(training), self.task(training.recipe))

    def run(self, training: Training, stop: Callable[[], bool]) -> Trained:
        """Return a training, run or resumed if it is not finished.

        Args:
            training: what to run.
            stop: tells after each step whether to save and stop there.

        Raises:
            Interrupted: it was stopped; the same call resumes it.
            filelock.Timeout: another process is running it.
        """
        folder, task = self._folder(training), self.task(training.recipe)
        recipe = training.recipe
        if training.after is not None:
            first = self.run(training.after, stop)
            recipe = replace(recipe, init_from=str(first.folder.path))
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock", timeout=0):
            if (found := self._read(folder, task)) is not None:
                return found
            run, record = Folder(folder / "run"), folder / RECORD
            if not record.exists():
                files.write_json(record, {"origin": asdict(Origin.now(self.command))})
            resume, message = run.recipe.exists(), None
            try:
                train(
                    # Begun with a description of its own; what decides the result is the same.
                    run.read_recipe() if resume else recipe,
                    run.path,
                    data_dir=self.data_dir,
                    resume=resume,
                    console=self.console,
                    probe=training.probe,
                    stop=stop,
                )
            except (Diverged, ModelError) as error:
                message = str(error)  # a result too: the papers' tables have such rows
            origin = json.loads(record.read_text("utf-8"))["origin"]
            files.write_json(record, {"origin": origin, "finished": True, "diverged": message})
        found = self._read(folder, task)
        assert found is not None
        return found

    def _folder(self, training: Training) -> Path:
        return self.folder / self.identity(training)

    def _read(self, folder: Path, task: Task) -> Trained | None:
        record = folder / RECORD
        if not record.exists():
            return None
        content = json.loads(record.read_text("utf-8"))
        if not content.get("finished"):
            return None
        return Trained(
            Folder(folder / "run"),
            content["diverged"],
            Origin(**content["origin"]),
            task,
            self.data_dir,
        )


def parameters(recipe: Recipe, model: Any = None) -> int:
    """Return the number of parameters of a recipe's network, without allocating them.

    Args:
        recipe: what its layer is made with.
        model: config of the network, completed from the data; None for the recipe's own.
    """
    recipe = recipe if model is None else replace(recipe, model=model)
    with torch.device("meta"):
        network = recipe.model.build(**recipe.layer())
    return sum(parameter.numel() for parameter in network.parameters())
