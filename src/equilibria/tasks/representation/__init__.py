"""Signals as networks of coordinates: a picture, a sound, a film or a shape that is learned."""

from equilibria.tasks.representation.config import SignalRepresentation
from equilibria.tasks.representation.fitting import SIGNAL, Described, suited_scale
from equilibria.tasks.representation.grid import GridTask
from equilibria.tasks.representation.shape import ShapeTask

__all__ = [
    "SIGNAL",
    "Described",
    "GridTask",
    "ShapeTask",
    "SignalRepresentation",
    "suited_scale",
]
