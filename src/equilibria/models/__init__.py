"""The zoo: one file per architecture, and a registry."""

from equilibria.models.base import (
    ClassifierConfig,
    EquilibriumModel,
    Model,
    ModelConfig,
    Prediction,
)
from equilibria.models.registry import available, create, register
from equilibria.models.sequence.base import SequenceModel
from equilibria.models.sequence.equilibrium import EquilibriumSequence
from equilibria.models.sequence.generation import generate
from equilibria.models.sequence.lexicon import Lexicon
from equilibria.models.vision.monotone_solvers import ForwardBackward, PeacemanRachford

__all__ = [
    "ClassifierConfig",
    "EquilibriumModel",
    "EquilibriumSequence",
    "ForwardBackward",
    "Lexicon",
    "Model",
    "ModelConfig",
    "PeacemanRachford",
    "Prediction",
    "SequenceModel",
    "available",
    "create",
    "generate",
    "register",
]
