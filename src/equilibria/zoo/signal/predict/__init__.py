"""Signals in small files: the weights of a network of their coordinates, decoded at any size.

encode("waves.inr", model, signal)
decoder = load("waves.inr")
large = decoder.decode(decoder.field.points(size=(1024, 1024))).values
slopes = decoder.gradient(decoder.field.points())
"""

from equilibria.zoo.signal.predict.decoder import Decoded, Decoder, encode, load
from equilibria.zoo.signal.predict.file import InrError

__all__ = ["Decoded", "Decoder", "InrError", "encode", "load"]
