"""The figures of a task's baseline on the data of a run."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from equilibria import files
from equilibria.run.data import stored
from equilibria.run.run import Folder
from equilibria.run.shapes import Baseline
from equilibria.run.tasks import Task


def reference(task: Task, folder: Folder, split: str) -> dict[str, Any]:
    """Return the figures of a task's baseline on a split, and its `name`.

    They are cached in the run folder.

    Args:
        task: of the run; it has a baseline.
        folder: of the run.
        split: one of the task's.
    """
    known: dict[str, Any] = {}
    with suppress(OSError, ValueError):  # it is recreated
        known = stored.read(folder.baseline, Baseline, spelt=True)
    if known.get("data") != task.checksum:
        known = {"data": task.checksum, "splits": {}}
    if split not in known["splits"]:
        known["splits"][split] = task.reference(split)
        files.write_json(folder.baseline, known)
    return {"name": task.baseline, **known["splits"][split]}
