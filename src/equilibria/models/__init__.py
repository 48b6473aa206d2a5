"""The zoo: one file per architecture, and a registry."""

from equilibria.models import flow, graph, recurrent, representation
from equilibria.models.base import (
    ClassifierConfig,
    EquilibriumModel,
    Model,
    ModelConfig,
    Prediction,
)
from equilibria.models.recurrent import ERNN, ImplicitERNN
from equilibria.models.registry import available, create, register
from equilibria.models.sequence.base import SequenceModel
from equilibria.models.sequence.equilibrium import EquilibriumSequence
from equilibria.models.sequence.generation import generate
from equilibria.models.sequence.lexicon import Lexicon
from equilibria.models.vision.monotone_solvers import ForwardBackward, PeacemanRachford

__all__ = [
    "ERNN",
    "ClassifierConfig",
    "EquilibriumModel",
    "EquilibriumSequence",
    "ForwardBackward",
    "ImplicitERNN",
    "Lexicon",
    "Model",
    "ModelConfig",
    "PeacemanRachford",
    "Prediction",
    "SequenceModel",
    "available",
    "create",
    "flow",
    "generate",
    "graph",
    "recurrent",
    "register",
    "representation",
]
