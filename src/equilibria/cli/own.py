"""Files of a user's own that run before a command, to register tasks, models and data sets."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path


class ImportFailed(Exception):
    """A file or a module of the user's that cannot be imported; the message says where and why."""


def taken(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of a command line without `--import NAME`, and the names.

    Raises:
        ImportFailed: a name is missing.
    """
    left, names, waiting = [], [], iter(words)
    for word in waiting:
        option, equals, name = word.partition("=")
        if option != "--import":
            left.append(word)
            continue
        names.append(name if equals else next(waiting, ""))
        if not names[-1] or names[-1].startswith("-"):
            raise ImportFailed("--import expects a Python file or the name of a module")
    return left, names


def imported(name: str) -> None:
    """Import a Python file by its path, or a module by its name.

    Raises:
        ImportFailed: there is no such file, or it raised an error.
    """
    try:
        if not name.endswith(".py"):
            importlib.import_module(name)
            return
        path = Path(name).resolve(strict=True)
        spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        raise ImportFailed(f"--import {name}: {type(error).__name__}: {error}") from error
