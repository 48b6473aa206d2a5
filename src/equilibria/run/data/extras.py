"""Packages of extras, asked for where they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from equilibria.run.data.errors import DataError

__all__ = ["needed"]


def needed(module: str, package: str, extra: str, what: str) -> Any:
    """Import a module.

    Raises:
        DataError: If its package is not installed; the message names the extra that has it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != module.partition(".")[0]:
            raise
        raise DataError(
            f"{what} needs {package}, which is not installed: pip install 'equilibria[{extra}]', "
            f"or in a clone pip install '.[{extra}]'"
        ) from error
