"""All studies by name: a file `papers/PAPER/NAME.py` that defines `STUDY` is PAPER/NAME."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

from equilibria.run import plugins
from equilibria.run.studies.identity import FILES
from equilibria.run.studies.results import SOURCE
from equilibria.run.studies.study import Study, StudyError

NO_PAPERS = (
    "the studies of the papers are not part of the installed package: run this in a clone of the "
    "repository, which has them in its folder papers"
)

ORDER = (
    *("digits", "bench", "deq", "jacobian", "mdeq", "inexact", "flow"),
    *("neural", "representation", "reasoning"),
    *("initialisation", "ernn"),
)
"""Folders in the order in which they are listed; others follow."""

_DEFINES = re.compile(r"^STUDY\b", re.MULTILINE)


def papers() -> Path | None:
    """Return the folder of the papers; None where there is none. It becomes importable.

    It is looked for beside the package's own source, then in the working directory and above it.
    """
    here = Path.cwd()
    for place in (SOURCE.parents[1], here, *here.parents):
        found = place / "papers"
        beside = place / "src" / "equilibria" / "__init__.py"  # a clone, and no other `papers`
        if (found / "__init__.py").is_file() and beside.is_file():
            if str(place) not in sys.path:
                sys.path.append(str(place))
            return found
    return None


def names() -> list[str]:
    """Return the names of all studies; none where there is no folder of the papers."""
    folder = papers()
    if folder is None:
        return []
    found = [path for path in folder.glob("*/*.py") if _DEFINES.search(path.read_text("utf-8"))]
    places = {folder: place for place, folder in enumerate(ORDER)}
    found.sort(key=lambda path: (places.get(path.parent.name, len(places)), path))
    return [f"{path.parent.name}/{path.stem}" for path in found]


def find(name: str) -> Study:
    """Return a study by its name, or by the path of a Python file of yours that defines `STUDY`.

    Raises:
        ImportFailed: the file raised an error; the message names its line.
        StudyError: it defines no study, an application that it needs is gone, or there is no
            folder of the papers.
    """
    folder = papers()  # which a user's file may import too
    if name.endswith(".py"):
        module = _import_file(Path(name).resolve(), os.stat(name).st_mtime_ns)
    elif folder is None:
        raise StudyError(NO_PAPERS)
    else:
        try:
            module = importlib.import_module(f"papers.{name.replace('/', '.')}")
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith("equilibria.zoo."):
                raise
            raise StudyError(f"{name} needs {error.name}, an application that is gone") from error
        if not Path(module.__file__ or "").resolve().is_relative_to(folder.resolve()):
            raise StudyError(
                f"Python finds another package 'papers' first, {module.__file__}: take it from "
                "PYTHONPATH"
            )
    if not isinstance(getattr(module, "STUDY", None), Study):
        raise StudyError(f"{name} defines no study: it has no STUDY, a run.studies.study.Study")
    paper = getattr(sys.modules.get(module.__package__ or ""), "PAPER", "")
    return module.STUDY.described_by(inspect.cleandoc(module.__doc__ or ""), paper)


@functools.lru_cache(maxsize=32)
def _import_file(path: Path, changed: int) -> Any:
    """The module of a user's file, executed once for each modification time."""
    return plugins.import_files(path, FILES)


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
    """Return the file that defines a study.

    Raises:
        StudyError: there is no folder of the papers.
    """
    if name.endswith(".py"):
        return Path(name)
    folder = papers()
    if folder is None:
        raise StudyError(NO_PAPERS)
    return folder / f"{name}.py"
