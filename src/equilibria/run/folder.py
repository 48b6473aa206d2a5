"""The folder of a training run: its files, its one writer, and what is checked of it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from equilibria import files
from equilibria.metric import Metric
from equilibria.run import recipe as recipes
from equilibria.run import yaml_text
from equilibria.run.checkpoint import CheckpointError, Checkpoints
from equilibria.run.config import ConfigError
from equilibria.run.data import storage
from equilibria.run.data.storage import read_bytes
from equilibria.run.lock import NAME as LOCK
from equilibria.run.lock import Locked, lock
from equilibria.run.processes import PeerLost
from equilibria.run.recipe import Recipe
from equilibria.run.records import Epoch, EvaluationRecord, Info
from equilibria.run.tasks import Task, TaskConfig
from equilibria.run.tasks.base import is_name
from equilibria.run.weights import read_weights_like


class RunError(RuntimeError):
    """A run folder that cannot be created, read or resumed; the message names it."""


BEGUN = (
    *("metrics.jsonl", "events", "checkpoints", "vocabulary.json", "images.json", "run.json"),
    "recipe.yaml",
)
"""What is in a run folder before the first checkpoint, in the order in which it can be deleted: as
long as there is a recipe, the folder can be resumed or started in."""


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

    @property
    def checkpoints(self) -> Checkpoints:
        """What the run needs to resume, in the folder "checkpoints"."""
        return Checkpoints(self.path / "checkpoints")

    def evaluation_of(
        self, split: str, *, changed: bool = False, other: Task | None = None
    ) -> Path:
        """Return the file of an evaluation.

        Args:
            split: that is evaluated.
            changed: whether the model was changed.
            other: the task, where its data are not those of the run.
        """
        name = "evaluation"
        if other is not None:
            source = re.sub(r"[^A-Za-z0-9]+", "-", other.source).strip("-").lower()[:40]
            name += f"-other-{source}-{other.checksum.rpartition(':')[2][:8]}"
        name += ("" if split == "test" else f"-{split}") + "-changed" * changed
        return self.path / f"{name}.json"

    def create(self, recipe: Recipe) -> None:
        """Create the folder and write the recipe into it.

        Raises:
            RunError: the path is not free.
        """
        self.check_free()
        self.path.mkdir(parents=True, exist_ok=True)
        files.write_text(self.recipe, recipes.to_yaml(recipe))

    def update(self, recipe: Recipe) -> None:
        """Write the recipe that the run goes on with, where it has a further segment, say."""
        if recipe != self.read_recipe():
            files.write_text(self.recipe, recipes.to_yaml(recipe))

    def check_writable(self) -> None:
        """Raise RunError if no file can be written into the folder, before work is done for it."""
        if self.path.is_dir() and not os.access(self.path, os.W_OK | os.X_OK):
            raise RunError(
                f"{self.path} cannot be written to, and the result is written there: copy it to a "
                "folder of yours"
            )

    @property
    def resume(self) -> str:
        """The command that resumes the run."""
        return f"equilibria train {shlex.quote(str(self.path))} --resume"

    @contextmanager
    def write_alone(self, *, resume: bool = False) -> Iterator[None]:
        """Be the only writer of the folder for a block, which it is created for if it is missing.

        Temporary files of writers that died are deleted. A start that ends before the first
        checkpoint leaves nothing behind, unless the disk or another process failed: then it can be
        resumed.

        Args:
            resume: the folder holds a run already.

        Raises:
            RunError: the path is not free, or no run under `resume`; or it has another writer.
        """
        self.check_begun() if resume else self.check_free()
        new = [path for path in (self.path, *self.path.parents) if not path.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with lock(self.path):
                if not resume:
                    self.check_free()
                    self._clear()  # what a run left that ended before it had saved anything
                for folder in (self.path, self.checkpoints.path):
                    files.clear(folder)
                try:
                    yield
                except BaseException as error:
                    kept = isinstance(error, OSError | PeerLost) and self.recipe.exists()
                    if not resume and not self.saved and not kept:
                        self._clear()
                        (self.path / LOCK).unlink(missing_ok=True)
                    raise
        except Locked as error:
            raise RunError(f"{error}: wait until it has ended, or stop it") from None
        finally:
            for path in new:
                with suppress(OSError):  # it holds a run, or others have put something there
                    path.rmdir()

    def _clear(self) -> None:
        """Delete the files that a run writes before its first checkpoint, and nothing else."""
        for path in (self.path / name for name in BEGUN):
            folder = path.is_dir() and not path.is_symlink()
            shutil.rmtree(path) if folder else path.unlink(missing_ok=True)

    @property
    def saved(self) -> bool:
        """Whether the run has saved anything that training can be resumed or judged from."""
        if self.metrics.is_file() and self.metrics.stat().st_size:
            return True
        return any(path.exists() for path in (self.weights, *self.checkpoints.all()))

    def check_begun(self) -> None:
        """Raise RunError if no run was begun in the folder: a recipe alone may be the user's."""
        self.read_recipe()
        if not (self.info.exists() or (self.path / LOCK).exists() or self.saved):
            raise RunError(
                f"{self.path} is not a run folder: it has a {self.recipe.name}, but no "
                f"{self.info.name}"
            )

    def check_free(self) -> None:
        """Raise RunError if the path is not free.

        It is where there is nothing, or only what a run left that ended before it had saved
        anything; the lock tells such a run from files of the user's.
        """
        if not self.path.exists():
            return
        if not self.path.is_dir():
            raise RunError(f"{self.path} is a file: name an empty or new folder with --out")
        names = {path.name for path in self.path.iterdir() if not files.temporary(path)}
        known = {LOCK, *BEGUN} if {LOCK, self.recipe.name} <= names else {LOCK}
        if names <= known and not self.saved:
            return
        if self.recipe.exists() and (self.info.exists() or self.saved):
            raise RunError(
                f"{self.path} already holds a run, which is not overwritten: continue it with "
                f"`{self.resume}`, or name another folder with --out"
            )
        raise RunError(
            f"{self.path} exists and is not a run: name an empty or new folder with --out"
        )

    def read_recipe(self) -> Recipe:
        """Return the recipe of the run.

        Raises:
            RunError: the folder is not a run.
            ConfigError: its recipe is not valid in this version of equilibria.
        """
        if not self.path.is_dir():
            raise RunError(f"there is no run folder {self.path}")
        if not self.recipe.is_file():
            raise RunError(f"{self.path} is not a run folder: it has no {self.recipe.name}")
        try:
            tree = yaml_text.read(self.recipe)
        except ConfigError as error:
            reason = str(error).removeprefix(f"{self.recipe}: ")
            raise RunError(f"{self.recipe} is damaged: {reason}") from None
        try:
            return recipes.parse(recipes.modernize(tree), source=str(self.recipe))
        except ConfigError as error:
            if str(self.recipe) in str(error):
                raise
            raise ConfigError(f"{self.recipe}: {error}") from None

    def read_info(self) -> dict[str, Any]:
        """Return what run.json holds.

        Raises:
            RunError: it is missing or damaged.
        """
        try:
            info = storage.read(self.info, Info, spelt=True)
            for each in info.get("metrics", ()):
                Metric.of(each)
        except FileNotFoundError:
            raise RunError(f"{self.info} is missing: {self.path} is not a whole run") from None
        except OSError as error:
            raise RunError(f"{self.info} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise RunError(f"{self.info} is damaged ({error}): restore it from a copy") from None
        return info

    def check_same(self, recipe: Recipe) -> None:
        """Raise RunError if the run was started with a recipe that has another result."""
        known = self.read_recipe()
        lines = recipes.differences(recipes.decisive(known), recipes.decisive(recipe))
        if lines:
            hint = ""
            if len(lines) == 1 and recipe.epochs > known.epochs:
                hint = f" To train on, use --extend {recipe.epochs - known.epochs}."
            raise RunError(
                f"{self.path} was started with another recipe and cannot be resumed with this one "
                f"({'; '.join(lines)}): leave these options out, or start a new run with --out."
                f"{hint}"
            )

    def read_evaluation(self) -> dict[str, Any]:
        """Return what evaluation.json holds.

        Raises:
            OSError: it is missing, or cannot be read.
            ValueError: it is damaged.
        """
        return storage.read(self.evaluation, EvaluationRecord, spelt=True)

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of all epochs.

        A last line truncated by a crash is dropped; a damaged one is left out, with a warning.

        Raises:
            RunError: the file cannot be read.
        """
        try:
            lines = read_bytes(self.metrics, storage.MOST).split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"{self.metrics} cannot be read: {error.strerror}") from None
        lines.pop()  # after the last newline: nothing, or what a crash truncated
        records: list[dict[str, Any]] = []
        for number, line in enumerate(lines, start=1):
            try:
                records.append(storage.parse(line, Epoch, spelt=True))
            except ValueError as error:
                warnings.warn(
                    f"line {number} of {self.metrics} is damaged and left out ({error})",
                    stacklevel=2,
                )
        return records


def absolute(task: TaskConfig) -> TaskConfig:
    """Return a task whose file or folder of the user's, if it has one, is an absolute path."""
    file, data = getattr(task, "file", None), getattr(task, "data", None)
    given = file or data
    if not isinstance(given, str) or (file is None and is_name(given)):
        return task  # the name of a data set
    return task.at(given)


def place_of(task: TaskConfig) -> Path | None:
    """Return the file or folder of the user's that a task reads; None for a named data set."""
    given = getattr(task, "file", None) or getattr(task, "data", None)
    path = Path(given) if isinstance(given, str) else None
    return path if path is not None and path.is_absolute() else None


def place_within(folder: Folder, task: TaskConfig) -> str | None:
    """Return where the user's data are, relative to the folder; None for a named data set."""
    place = place_of(task)
    try:
        return None if place is None else os.path.relpath(place, folder.path.resolve())
    except ValueError:  # on another drive of Windows
        return None


def locate(folder: Folder, task: TaskConfig, data_dir: Path | None = None) -> TaskConfig:
    """Return the task of the run with its data where they are now.

    A file or folder of the user's that is no longer where it was is looked for by its name in
    `data_dir`, and then at the same place relative to the run folder: both may have moved
    together.
    """
    place = place_of(task)
    if place is None or place.exists():
        return task
    if data_dir is not None and (data_dir / place.name).exists():
        return task.at((data_dir / place.name).absolute())
    try:
        relative = folder.read_info().get("place")
    except RunError:
        return task
    if not isinstance(relative, str):
        return task
    nearby = folder.path.resolve() / relative
    return task.at(os.path.normpath(nearby)) if nearby.exists() else task


def check_data(folder: Folder, task: Task) -> None:
    """Check that the run was started on the same data.

    Raises:
        RunError: it was started on other data.
    """
    if not folder.info.exists():
        warnings.warn(
            f"{folder.info} is missing: whether the data are those of the run is not known",
            stacklevel=3,
        )
        return
    info = folder.read_info()
    if (known := info.get("data")) != task.checksum:
        raise RunError(
            f"{folder.path} was trained on other data than those found: "
            f"{info.get('source') or 'unnamed'} ({known}) there, "
            f"{task.source or 'unnamed'} ({task.checksum}) here. Name the folder that "
            "holds the original data with --data-dir"
        )


def check_untrained(folder: Folder) -> None:
    """Check that a run without a checkpoint loses nothing by restarting.

    Raises:
        RunError: it has weights.
    """
    if folder.weights.exists():
        raise RunError(
            f"{folder.checkpoints.path} has no checkpoint, though the run has "
            f"{folder.weights.name}: restore it, or train into another folder with --out"
        )


def has_weights(folder: Folder, model: nn.Module) -> bool:
    """Return whether the weights are there, intact and of such a model."""
    try:
        read_weights_like(folder.weights, model.state_dict())
    except CheckpointError:
        return False
    return True


def is_concluded(folder: Folder, step: int) -> bool:
    """Return whether the final evaluation has been made, after so many steps."""
    try:
        return folder.read_evaluation().get("step", step) == step
    except (OSError, ValueError):
        return False  # it is made again
