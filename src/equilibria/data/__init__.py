"""All data sets by name; those of an application are in its folder."""

import importlib
from typing import Any

from equilibria.data.dataset import Dataset, Samples, Split, UserData
from equilibria.data.errors import DataError
from equilibria.data.registry import available, entry, load, register

__all__ = [
    "DataError",
    "Dataset",
    "Samples",
    "Split",
    "UserData",
    "available",
    "entry",
    "load",
    "register",
]


def __getattr__(name: str) -> Any:
    try:
        return importlib.import_module(f"equilibria.data.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"module 'equilibria.data' has no attribute {name!r}") from None
