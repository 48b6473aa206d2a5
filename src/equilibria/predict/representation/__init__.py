"""Signals in small files: the weights of a network of their coordinates, decoded at any size.

decoder = load("camera.inr")
large = decoder.decode(decoder.field.points(size=(1024, 1024))).values
slopes = decoder.gradient(decoder.field.points())
"""

from equilibria.predict.representation.decoder import Decoded, Decoder, load
from equilibria.predict.representation.file import Contents, InrError

__all__ = ["Contents", "Decoded", "Decoder", "InrError", "load"]
