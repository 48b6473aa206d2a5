"""Signals as networks of coordinates: a picture, a sound, a film or a shape that is learned."""

from equilibria.zoo.signal.task.fitting import SIGNAL, Described, suggest_scale
from equilibria.zoo.signal.task.grid import GridTask
from equilibria.zoo.signal.task.reading import SignalRepresentation
from equilibria.zoo.signal.task.shape import ShapeTask

__all__ = [
    "SIGNAL",
    "Described",
    "GridTask",
    "ShapeTask",
    "SignalRepresentation",
    "suggest_scale",
]
