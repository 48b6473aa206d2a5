"""The folder of a training run."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn

from equilibria.metric import LOSS
from equilibria.models import Model, SequenceModel
from equilibria.tasks import Task
from equilibria.train import config, files, yaml_text
from equilibria.train import recipe as recipes
from equilibria.train.checkpoint import load_weights
from equilibria.train.config import ConfigError
from equilibria.train.recipe import Recipe


class RunError(RuntimeError):
    """A run folder that cannot be created, read or resumed; the message names it."""


class _File:
    """A file of a run folder, by its name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Folder, _: type[Folder] | None = None) -> Path:
        return folder.path / self.name


@dataclass(frozen=True)
class Folder:
    """Where the files of a run are."""

    path: Path

    recipe = _File("recipe.yaml")
    """The recipe with every default filled in, as YAML."""
    info = _File("run.json")
    """Versions, hardware and date, as JSON."""
    metrics = _File("metrics.jsonl")
    """One line per epoch, each a JSON object."""
    events = _File("events")
    """Folder of TensorBoard's events."""
    weights = _File("model.safetensors")
    """Weights after the last finished epoch, as safetensors."""
    checkpoint = _File("checkpoint.pt")
    """What the run needs to resume."""
    evaluation = _File("evaluation.json")
    """Figures, evaluations and statuses on the test data, as JSON."""
    vocabulary = _File("vocabulary.json")
    """Which token is which word or character, as JSON, for a run on a text."""
    images = _File("images.json")
    """Names of the classes and how images were normalised, as JSON, for a run on images."""
    baseline = _File("baseline.json")
    """Figures of the task's baseline on the same data, as JSON."""
    memory = _File("memory.json")
    """Memory of a training step against depth, as JSON."""

    def evaluation_of(self, split: str, *, changed: bool = False) -> Path:
        """Return the file of an evaluation: of another split, or of a model that was changed."""
        name = "evaluation" + ("" if split == "test" else f"-{split}") + "-changed" * changed
        return self.path / f"{name}.json"

    def create(self, recipe: Recipe) -> None:
        """Create the folder and write the recipe into it.

        Raises:
            RunError: the path is not free.
        """
        self.check_free()
        self.path.mkdir(parents=True, exist_ok=True)
        files.write_text(self.recipe, recipes.to_yaml(recipe))

    def check_free(self) -> None:
        """Raise RunError if the path is not free."""
        if self.recipe.exists():
            raise RunError(
                f"{self.path} already holds a run, which is not overwritten: "
                "continue it with --resume, or name another folder with --out"
            )
        if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise RunError(
                f"{self.path} exists and is not a run: name an empty or new folder with --out"
            )

    def read_recipe(self) -> Recipe:
        """Return the recipe of the run.

        Raises:
            RunError: the folder is not a run.
            ConfigError: its recipe is not valid in this version of equilibria.
        """
        if not self.recipe.is_file():
            raise RunError(f"{self.path} is not a run folder: it has no {self.recipe.name}")
        try:
            tree = yaml_text.read(self.recipe)
        except ConfigError as error:
            reason = str(error).removeprefix(f"{self.recipe}: ")
            raise RunError(f"{self.recipe} is damaged: {reason}") from None
        return recipes.parse(tree, source=str(self.recipe))

    def check_untrained(self) -> None:
        """Check that a run without a checkpoint loses nothing by restarting.

        Raises:
            RunError: it has weights or metrics.
        """
        trained = [path for path in (self.weights, self.metrics) if path.exists()]
        if any(path.stat().st_size for path in trained):
            raise RunError(
                f"{self.checkpoint} is missing, though the run has {trained[0].name}: restore it, "
                "or train into another folder with --out"
            )

    def check_data(self, checksum: str) -> None:
        """Check that the run was started on the same data.

        Raises:
            RunError: it was started on other data.
        """
        known = json.loads(self.info.read_text("utf-8")).get("data")
        if known != checksum:
            raise RunError(
                f"{self.path} was started on other data ({known}) than those found ({checksum}): "
                "name the folder of the original data with --data-dir"
            )

    def check_same(self, recipe: Recipe) -> None:
        """Raise RunError if the run was started with another recipe."""
        lines = config.differences(
            *(recipes.renamed(recipes.dump(each)) for each in (self.read_recipe(), recipe))
        )
        if lines:
            raise RunError(
                f"{self.path} was started with another recipe and cannot be resumed with this one "
                f"({'; '.join(lines)}): leave these options out, or start a new run with --out"
            )

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of all epochs; a last line truncated by a crash is dropped."""
        if not self.metrics.is_file():
            return []
        lines = self.metrics.read_text("utf-8").splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines.pop()
        try:
            return [json.loads(line) for line in lines]
        except json.JSONDecodeError as error:
            raise RunError(f"{self.metrics} is damaged: {error}") from None


@dataclass(frozen=True)
class Run:
    """A training run, read from its folder."""

    folder: Path
    recipe: Recipe
    model: Model
    """With the trained weights, in evaluation mode, on the CPU."""
    task: Task | None
    metrics: list[dict[str, Any]]
    """One record per finished epoch."""

    @property
    def data(self) -> Task:
        """The task; an error where the run was loaded without its data."""
        if self.task is None:
            raise RunError(f"{self.folder} was loaded without its data")
        return self.task


def load(
    path: str | Path,
    *,
    data_dir: Path | None = None,
    data: bool = True,
    changes: Mapping[str, Any] | None = None,
) -> Run:
    """Read a run.

    Args:
        path: its folder.
        data_dir: folder to search for data sets before EQUILIBRIA_DATA.
        data: read the data set too.
        changes: fields of the model's config that differ from training, such as `eval_memory`.
            They must not affect the weights.

    Raises:
        RunError: there is no run at `path`.
        CheckpointError: its weights are missing or damaged.
    """
    folder = Folder(Path(path))
    if not folder.path.is_dir():
        raise RunError(f"there is no run folder {folder.path}")
    recipe = folder.read_recipe()
    if changes:
        recipe = replace(recipe, model=replace(recipe.model, **changes))
    task = recipe.task.load(data_dir) if data else None
    layer = recipe.layer()
    model = task.model(recipe.model, **layer) if task else recipe.model.build(**layer)
    load_weights(folder.weights, model)
    return Run(folder.path, recipe, model.eval(), task, folder.read_metrics())


def describe(model: Model, task: Task, accelerator: Accelerator) -> dict[str, Any]:
    """Return what run.json holds: what the result depends on besides the recipe, and metrics."""
    counts = {"parameters": _parameters(model)}
    if isinstance(model, SequenceModel):
        lexicon = _parameters(model.lexicon)
        counts["parameters_without_lexicon"] = counts["parameters"] - lexicon
    return {
        **environment(),
        "processes": accelerator.num_processes,
        "device": accelerator.device.type,
        **counts,
        "source": task.source,
        "data": task.checksum,
        "unit": task.unit,
        "eval_split": task.eval_split,
        "metrics": [metric.describe() for metric in dict.fromkeys((*task.metrics, LOSS))],
    }


def _parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def environment() -> dict[str, Any]:
    """Return what a result depends on besides the recipe: versions, hardware, date."""
    packages = ("equilibria", "torch", "numpy", "accelerate")
    hardware = f"{len(_cores())} CPU cores, {torch.get_num_threads()} threads"
    if torch.cuda.is_available():
        hardware = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}, {hardware}"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in packages},
        "hardware": hardware,
    }


def _cores() -> set[int]:
    if sys.platform == "linux":
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))
