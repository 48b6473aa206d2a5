"""Files of a user's own that run before a command, to register tasks, models and data sets."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path


class ImportFailed(Exception):
    """A file or a module of the user's that cannot be imported; the message says where and why."""


def imported(words: Sequence[str]) -> list[str]:
    """Import what `--import NAME` names in a command line, and return the other words.

    Args:
        words: of the command line; a name is a Python file, or a module.

    Raises:
        ImportFailed: there is no such file or module, or it raised an error.
    """
    left, waiting = [], iter(words)
    for word in waiting:
        option, equals, name = word.partition("=")
        if option != "--import":
            left.append(word)
            continue
        name = name if equals else next(waiting, "")
        if not name or name.startswith("-"):
            raise ImportFailed("--import expects a Python file or the name of a module")
        try:
            _import(name)
        except Exception as error:
            raise ImportFailed(f"--import {name}: {type(error).__name__}: {error}") from error
    return left


def _import(name: str) -> None:
    if not name.endswith(".py"):
        importlib.import_module(name)
        return
    path = Path(name).resolve(strict=True)
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
