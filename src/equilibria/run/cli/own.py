"""The option `--import`: a user's own files, which register tasks, models and data sets."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from equilibria.run import own


def imported(words: Sequence[str]) -> list[str]:
    """Import what `--import NAME` names on a command line, and return the other words.

    Args:
        words: of the command line; a name is a Python file or a module.

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
            raise own.ImportFailed("--import expects a Python file or the name of a module")
        if name.endswith(".py"):
            own.imported(name, "own_")
            continue
        try:
            importlib.import_module(name)
        except Exception as error:
            message = f"--import {name}: {type(error).__name__}: {error}"
            raise own.ImportFailed(message) from error
    return left
