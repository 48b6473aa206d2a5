"""All data sets by name; those of an application are in its folder."""

from typing import Any

from equilibria.run.data.dataset import Dataset, Samples, Split, UserData
from equilibria.run.data.registry import available, entry, load, register
from equilibria.run.data.storage import DataError
from equilibria.run.registry import import_part

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
    return import_part(__name__, name, "data")
