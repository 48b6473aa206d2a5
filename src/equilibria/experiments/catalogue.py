"""All studies by name: a file `studies/PAPER/NAME.py` with a `STUDY` is the study PAPER/NAME."""

from __future__ import annotations

import functools
import importlib
import os
from pathlib import Path
from typing import Any

from equilibria.experiments.identity import FILES
from equilibria.experiments.study import Study, StudyError
from equilibria.run import own

__all__ = ["ORDER", "file_of", "find", "names", "rows_of", "source_of"]

STUDIES = Path(__file__).parent / "studies"

ORDER = (
    *("digits", "solvers", "bench", "deq", "jacobian", "mdeq", "inexact", "flow"),
    *("neural", "representation"),
    *("initialisation", "ernn"),
)
"""Folders in the order in which they are listed; others follow."""


def names() -> list[str]:
    """Return the names of all studies."""
    found = [path for path in STUDIES.glob("*/*.py") if not path.name.startswith("_")]
    places = {folder: place for place, folder in enumerate(ORDER)}
    found.sort(key=lambda path: (places.get(path.parent.name, len(places)), path))
    return [f"{path.parent.name}/{path.stem}" for path in found]


def find(name: str) -> Study:
    """Return a study by its name, or by the path of a Python file of yours that defines `STUDY`.

    Raises:
        ImportFailed: the file raised an error; the message names its line.
        StudyError: it defines no study.
    """
    if name.endswith(".py"):
        module = _imported(Path(name).resolve(), os.stat(name).st_mtime_ns)
    else:
        module = importlib.import_module(f"{__package__}.studies.{name.replace('/', '.')}")
    if not isinstance(getattr(module, "STUDY", None), Study):
        raise StudyError(f"{name} defines no study: it has no STUDY, an experiments.study.Study")
    return module.STUDY


@functools.lru_cache(maxsize=32)
def _imported(path: Path, changed: int) -> Any:
    """The module of a user's file, executed once for each modification time."""
    return own.imported(path, FILES)


def file_of(name: str) -> str:
    """Return the name of a study's files, without a suffix: `deq-growth`.

    Of a file of yours, its path below the working directory: `mine`, `ideas-mine`.
    """
    if name.endswith(".py"):
        path, here = Path(name).resolve(), Path.cwd()
        parts = path.relative_to(here).parts if path.is_relative_to(here) else path.parts[-2:]
        name = "/".join(parts).removesuffix(".py")
    return name.replace("/", "-")


def rows_of(name: str) -> str:
    """Return the name of the CSV file that a study shows, its own or another's: `deq-growth`."""
    return file_of(find(name).rows_of or name)


def source_of(name: str) -> Path:
    """Return the file that defines a study."""
    return Path(name) if name.endswith(".py") else STUDIES / f"{name}.py"
