"""What every model is, and all models by name; those of an application are in its folder."""

import importlib
from typing import Any

from equilibria.models.base import (
    ClassifierConfig,
    EquilibriumModel,
    Model,
    ModelConfig,
    Prediction,
)
from equilibria.models.registry import available, config_of, create, register

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
    try:
        return importlib.import_module(f"equilibria.models.{name}")
    except ModuleNotFoundError:
        raise AttributeError(f"module 'equilibria.models' has no attribute {name!r}") from None
