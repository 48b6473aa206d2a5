"""Training a layer's learned solver on the layer's own equilibria."""

from equilibria.nn.distilling.config import Distillation
from equilibria.nn.distilling.contest import Contestant, Outcome, contest, limits_of
from equilibria.nn.distilling.distil import distil
from equilibria.nn.distilling.teacher import Solved, solve
from equilibria.nn.distilling.training import train, untrained

__all__ = [
    "Contestant",
    "Distillation",
    "Outcome",
    "Solved",
    "contest",
    "distil",
    "limits_of",
    "solve",
    "train",
    "untrained",
]
