"""What every model is, and all models by name; those of an application are in its folder."""

from typing import Any

from equilibria.run.models.base import (
    ClassifierConfig,
    EquilibriumModel,
    Model,
    ModelConfig,
    Prediction,
)
from equilibria.run.models.registry import available, config_of, create, register
from equilibria.run.registry import import_part

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
    return import_part(__name__, name, "model")
