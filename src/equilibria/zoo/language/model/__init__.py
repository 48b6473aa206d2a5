"""Sequence models: equilibrium, explicit and recurrent, over one kind of vocabulary."""

from equilibria.zoo.language.model.base import SequenceModel
from equilibria.zoo.language.model.equilibrium import EquilibriumSequence
from equilibria.zoo.language.model.generation import generate
from equilibria.zoo.language.model.lexicon import Lexicon

__all__ = ["EquilibriumSequence", "Lexicon", "SequenceModel", "generate"]
