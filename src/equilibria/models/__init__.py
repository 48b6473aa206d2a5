"""The zoo: one file per architecture, and a registry."""

from equilibria.models.base import ClassifierConfig, EquilibriumModel, ModelConfig, Prediction
from equilibria.models.registry import available, create

__all__ = [
    "ClassifierConfig",
    "EquilibriumModel",
    "ModelConfig",
    "Prediction",
    "available",
    "create",
]
