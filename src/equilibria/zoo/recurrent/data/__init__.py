"""Sequences of sensors, sound and words, each with a class.

They are read by name, or from a folder of your own:

    har = eq.data.load("har2")                     # windows of nine channels, by volunteer
    mine = eq.data.recurrent.load("recordings")    # recordings/walking/*.csv, recordings/...
    inputs, targets = mine.train[:16]              # inputs are (tensor, lengths) if these differ
"""

from equilibria.zoo.io.sequences import Sequences, SequenceSamples, SequenceSet
from equilibria.zoo.recurrent.data.user import load

__all__ = ["SequenceSamples", "SequenceSet", "Sequences", "load"]
