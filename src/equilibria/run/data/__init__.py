"""All data sets by name; those of an application are in its folder."""

import importlib
from importlib.util import find_spec
from typing import Any

from equilibria.run.data.dataset import Dataset, Samples, Split, UserData
from equilibria.run.data.registry import available, entry, load, register
from equilibria.run.data.storage import DataError
from equilibria.run.registry import package_of

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
    """The data sets of an application, such as `flow`, as the package in its folder."""
    own = name.startswith("_") or find_spec(f"{__name__}.{name}")  # an import looks here first
    place = None if own else f"{package_of(name)}.data"
    if place is None or package_of(name) is None or find_spec(place) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(place)
