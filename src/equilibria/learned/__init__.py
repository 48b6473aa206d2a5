"""Learned solvers: a network that predicts the initial guess and the mixing weights of a layer's
solves, trained on the layer's own equilibria.

    solved = eq.distill(layer, batches)    # trains `layer.neural`, and uses it in eval mode
"""

from equilibria.learned.contest import Contestant, Outcome
from equilibria.learned.distill import distill
from equilibria.learned.initializers import Initializer, initializer_for
from equilibria.learned.mixers import GramMixer, PooledMixer
from equilibria.learned.solver import NeuralSolver
from equilibria.learned.training import Distillation
from equilibria.learned.weights import Learned

__all__ = [
    "Contestant",
    "Distillation",
    "GramMixer",
    "Initializer",
    "Learned",
    "NeuralSolver",
    "Outcome",
    "PooledMixer",
    "distill",
    "initializer_for",
]
