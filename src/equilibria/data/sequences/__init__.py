"""Sequences of sensors, sound and words, each with a class."""

from equilibria.data.sequences.samples import Sequences, SequenceSet

__all__ = ["SequenceSet", "Sequences"]
