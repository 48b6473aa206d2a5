"""Sequences of sensors, sound and words, each with a class.

    har = eq.data.load("har2")                     # windows of nine channels, by volunteer
    mine = eq.data.sequences.load("recordings")    # recordings/walking/*.csv, recordings/...
    inputs, targets = mine.train[:16]              # inputs are (tensor, lengths) if these differ

`adding` and `order` draw sequences that need no files.
"""

from equilibria.data.sequences.samples import Sequences, SequenceSamples, SequenceSet
from equilibria.data.sequences.synthetic import adding, order
from equilibria.data.sequences.user import load

__all__ = ["SequenceSamples", "SequenceSet", "Sequences", "adding", "load", "order"]
