"""A training run, read from its folder; and what is written there of its surroundings."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from equilibria.run.config import as_chosen
from equilibria.run.data.storage import DataError
from equilibria.run.folder import Folder, RunError, check_data, locate, place_of
from equilibria.run.models import Model
from equilibria.run.recipe import Recipe
from equilibria.run.tasks import Task, TaskConfig
from equilibria.run.weights import load_weights
from equilibria.stability import AdaptiveAdjoint, AdjointAudit


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
    other: str | None = None
    """What the data are called, where they are not those of the run."""

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
    other: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Run:
    """Read a run.

    Args:
        path: its folder.
        data_dir: folder to search for data sets before EQUILIBRIA_DATA.
        data: read the data set too.
        other: a file, a folder or the name of a data set in place of the run's own, which may have
            moved there. Data that differ are seen as the model was trained to see its own: with
            the run's vocabulary, classes and normalisation.
        changes: fields of the model's config that differ from training, such as `eval_memory`.
            They must not affect the weights.

    Raises:
        RunError: there is no run at `path`; or its data have changed, and are not `other` data.
        CheckpointError: its weights are missing or damaged.
    """
    folder = Folder(Path(path))
    recipe = folder.read_recipe()
    if changes:
        recipe = replace(recipe, model=replace(recipe.model, **changes))
    task, name = None, None
    if data:
        with as_chosen():
            task, name = _data(folder, recipe.task, data_dir, other)
    layer = recipe.layer()
    with as_chosen():
        model = task.model(recipe.model, **layer) if task else recipe.model.build(**layer)
    load_weights(folder.weights, model)
    metrics = folder.read_metrics()
    if isinstance(recipe.adjoint, AdaptiveAdjoint) and metrics and "audit" in metrics[-1]:
        found = metrics[-1]["audit"]
        # Where training has left it; `rung` is what earlier versions called the level.
        AdjointAudit(model).resume(found.get("level", found.get("rung", 0)))
    return Run(folder.path, recipe, model.eval(), task, metrics, name)


def _data(
    folder: Folder, task: TaskConfig, data_dir: Path | None, other: str | None
) -> tuple[Task, str | None]:
    """Return the data of a run, or `other` data, and what these are called; see `load`."""
    if other is None:
        task = locate(folder, task, data_dir)
        place = place_of(task)
        if place is not None and not place.exists():
            raise RunError(
                f"the data of {folder.path} are no longer at {place}: put them back, or name the "
                "folder that holds them now with --data-dir"
            )
        found = task.load(data_dir)
        check_data(folder, found)
        return found, None
    given = task.at(other)
    with suppress(DataError, ValueError):  # too few to learn from are not the run's own
        found = given.load(data_dir)
        if found.checksum == folder.read_info().get("data"):
            return found, None
    found = given.load_other(folder.path, data_dir)
    return found, found.source or other


def describe(model: Model, task: Task, accelerator: Accelerator) -> dict[str, Any]:
    """Return what run.json holds: what the result depends on besides the recipe, and metrics."""
    return {
        **environment(),
        "processes": accelerator.num_processes,
        "device": accelerator.device.type,
        **model.count_parameters(),
        "source": task.source,
        "data": task.checksum,
        "unit": task.unit,
        "eval_split": task.eval_split,
        "metrics": [
            metric.describe() for metric in dict.fromkeys((*task.metrics, task.loss_metric))
        ],
    }


def segment(step: int, epochs: int, accelerator: Accelerator) -> dict[str, Any]:
    """Return what run.json holds of a part of the run that one command trains.

    Args:
        step: at which it begins.
        epochs: at which it is to end.
        accelerator: of this process.
    """
    where = {"processes": accelerator.num_processes, "device": accelerator.device.type}
    return {"step": step, "epochs": epochs, **environment(), **where}


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
