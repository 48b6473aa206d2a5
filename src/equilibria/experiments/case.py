"""One measurement of an experiment: what it is called, what it costs, what it leaves behind."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from equilibria.bench import record
from equilibria.train import files
from equilibria.train import recipe as recipes
from equilibria.train.config import ConfigError

__all__ = ["RESULT", "SHARED", "Case", "CaseError", "Done", "Place", "Results", "StaleError"]

SHARED = "runs"
"""Folder of the cases that several experiments share, beside those of the experiments."""

RESULT = "result.json"
"""The file that a case leaves in its folder."""


class CaseError(RuntimeError):
    """A case that cannot be run or read; the message says why and what to do."""


class StaleError(CaseError):
    """A result that was measured on another run of a shared case than the one that is there."""


@dataclass(frozen=True)
class Done:
    """What a finished case has left.

    Attributes:
        value: what it measured, as JSON gives it back.
        record: the whole file: command, commit, machine, versions, date, seconds and `value`.
    """

    value: Mapping[str, Any]
    record: Mapping[str, Any]


Results = Mapping[str, Done]
"""The finished cases of an experiment by their keys; what is missing was not run."""


@dataclass(frozen=True)
class Place:
    """Where a case runs, and what it may read.

    Attributes:
        folder: the case's own; what an interrupted case has left there is still there.
        out: of all experiments.
        data_dir: folder to look for data sets in, before EQUILIBRIA_DATA.
        console: for what a reader wants to know meanwhile.
        deadline: time by `time.monotonic` at which a case that can go on later stops; None for no
            limit.
    """

    folder: Path
    out: Path
    console: Console
    data_dir: Path | None = None
    deadline: float | None = None

    @property
    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def shared(self, key: str) -> Path:
        """The folder of a shared case that this one needs."""
        return self.out / SHARED / key


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement, run once and kept.

    Args:
        key: its name, of letters, digits, dots and dashes; different in an experiment, and of
            shared cases in all of them.
        description: what it measures, in a sentence.
        minutes: estimate on two CPU cores, or on a GPU where it asks for one.
        run: measures, and returns what JSON can hold.
        settings: what decides the result, as JSON; a result that was measured with others is not
            taken for this case's.
        needs: keys of shared cases that must have been run; a result is of these runs alone.
        shared: its result serves several experiments.
        resumable: stops at the deadline by raising an error of `PAUSES` and goes on the next time.
    """

    key: str
    description: str
    minutes: float
    run: Callable[[Place], Mapping[str, Any]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    shared: bool = False
    resumable: bool = False

    def folder(self, out: Path, experiment: str) -> Path:
        """Where the case keeps its files.

        Args:
            out: folder of all experiments.
            experiment: name of the experiment, such as `deq/growth`.
        """
        return out / SHARED / self.key if self.shared else out / "cases" / experiment / self.key

    def needed(self, out: Path) -> dict[str, str]:
        """Return the SHA-256 of the result of each shared case that it needs and that is there.

        Args:
            out: folder of all experiments.
        """
        paths = {key: out / SHARED / key / RESULT for key in self.needs}
        return {
            key: hashlib.sha256(path.read_bytes()).hexdigest()
            for key, path in paths.items()
            if path.exists()
        }

    def read(self, folder: Path, needed: Mapping[str, str]) -> Done | None:
        """Return what the case has left in its folder; None where it has not been run.

        Args:
            folder: its own.
            needed: as `needed` gives it.

        Raises:
            StaleError: it was measured on other runs of what it needs.
            CaseError: the file is damaged, or was measured with other settings.
        """
        path = folder / RESULT
        if not path.exists():
            return None
        try:
            whole = json.loads(path.read_text("utf-8"))
            value, settings = whole["value"], whole["settings"]
        except (ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise CaseError(f"{path} is damaged ({reason}): remove it to measure it anew") from None
        runs = whole.get("needs") or {}
        stale = [key for key in self.needs if runs.get(key) != needed.get(key)]
        if stale:
            raise StaleError(
                f"{path} was not measured on the {', '.join(stale)} that is there now: remove it "
                "to measure it anew"
            )
        now = recipes.renamed(_plain(self.settings))
        if "recipe" in settings:
            settings = {**settings, "recipe": _current(settings["recipe"])}
        settings = recipes.renamed(settings)
        if settings != now:
            raise CaseError(
                f"{path} was measured with other settings ({_difference(settings, now)}): name "
                "another folder with --out, or remove this one"
            )
        return Done(value, whole)

    def write(
        self,
        folder: Path,
        value: Mapping[str, Any],
        seconds: float,
        command: str,
        needed: Mapping[str, str],
    ) -> Done:
        """Keep what the case has measured, whole or not at all.

        Args:
            folder: its own.
            value: what it measured.
            seconds: that it took.
            command: what was typed.
            needed: as `needed` gave it before the case was run.
        """
        whole = record.finite(
            {
                "key": self.key,
                "description": self.description,
                "settings": self.settings,
                **({"needs": needed} if self.needs else {}),
                "value": value,
                "seconds": round(seconds, 1),
                "threads": torch.get_num_threads(),
                **record.origin(command),
            }
        )
        files.write_text(
            folder / RESULT, json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
        )
        again = json.loads((folder / RESULT).read_text("utf-8"))
        return Done(again["value"], again)


def _plain(tree: Any) -> Any:
    """The same tree as JSON gives it back."""
    return json.loads(json.dumps(record.finite(tree)))


def _current(recipe: Any) -> Any:
    """A recorded recipe with the defaults of fields that are newer than the record."""
    try:
        return _plain(recipes.dump(recipes.parse(recipe)))
    except ConfigError:
        return recipe


def _difference(there: Any, here: Any, prefix: str = "") -> str:
    """The first keys at which two settings differ: 'key: this there, that here'."""
    if isinstance(there, Mapping) and isinstance(here, Mapping):
        keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
        return "; ".join(
            _difference(there.get(key), here.get(key), f"{prefix}{key}.") for key in keys[:3]
        )
    return f"{prefix.removesuffix('.') or 'settings'}: {there} there, {here} here"
