"""Python files of a user's own, imported by their path."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType


class ImportFailed(Exception):
    """A user's file or module cannot be imported; the message gives file, line and reason."""


def imported(path: str | Path, prefix: str) -> ModuleType:
    """Execute a Python file and return it as the module `prefix` + its stem.

    Args:
        path: of the file.
        prefix: of the module's name, under which `sys.modules` has it.

    Raises:
        ImportFailed: there is no such file, or it raised an error.
    """
    file = Path(path).resolve()
    if not file.is_file():
        raise ImportFailed(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"{prefix}{file.stem}", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(file)]
        line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else "?"
        raise ImportFailed(f"{file}, line {line}: {type(error).__name__}: {error}") from error
    return module
