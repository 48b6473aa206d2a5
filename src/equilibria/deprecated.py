"""Public names that have moved, kept for one version."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def aliases(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__` that finds old names in their new place, with a warning.

        __getattr__ = aliases(__name__, {"Old": "equilibria.nn.New"})

    Args:
        module: the module that has lost the names.
        names: where each old name is now, in full.
    """

    def find(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = names[name].rpartition(".")
        warnings.warn(
            f"{module}.{name} is deprecated: use {names[name]}", DeprecationWarning, stacklevel=2
        )
        return getattr(importlib.import_module(place), new)

    return find
