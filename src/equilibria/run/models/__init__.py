"""What every model is, and all models by name; those of an application are in its folder."""

import importlib
from importlib.util import find_spec
from typing import Any

from equilibria.run.models.base import (
    ClassifierConfig,
    EquilibriumModel,
    Model,
    ModelConfig,
    Prediction,
)
from equilibria.run.models.registry import available, config_of, create, register
from equilibria.run.registry import package_of

__all__ = [
    "ClassifierConfig",
    "EquilibriumModel",
    "Model",
    "ModelConfig",
    "Prediction",
    "available",
    "config_of",
    "create",
    "register",
]


def __getattr__(name: str) -> Any:
    """The models of an application, such as `flow`, as the package in its folder."""
    own = name.startswith("_") or find_spec(f"{__name__}.{name}")  # an import looks here first
    place = None if own else f"{package_of(name)}.model"
    if place is None or package_of(name) is None or find_spec(place) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(place)
