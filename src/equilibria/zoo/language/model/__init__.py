"""Sequence models: equilibrium, explicit and recurrent, over one kind of vocabulary."""

from equilibria.zoo.language.model.architectures import EquilibriumSequence
from equilibria.zoo.language.model.base import Lexicon, SequenceModel
from equilibria.zoo.language.model.generation import generate

__all__ = ["EquilibriumSequence", "Lexicon", "SequenceModel", "generate"]
