"""The zoo: one file per architecture, and a registry."""

from equilibria.models.base import (
    ClassifierConfig,
    EquilibriumModel,
    Model,
    ModelConfig,
    Prediction,
)
from equilibria.models.registry import available, create
from equilibria.models.sequence.base import SequenceModel
from equilibria.models.sequence.equilibrium import EquilibriumSequence
from equilibria.models.sequence.generation import generate
from equilibria.models.sequence.lexicon import Lexicon

__all__ = [
    "ClassifierConfig",
    "EquilibriumModel",
    "EquilibriumSequence",
    "Lexicon",
    "Model",
    "ModelConfig",
    "Prediction",
    "SequenceModel",
    "available",
    "create",
    "generate",
]
