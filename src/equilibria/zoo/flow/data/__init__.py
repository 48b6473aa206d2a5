"""Optical flow: files, pairs of images with their flow, and generated pairs.

field = eq.data.flow.read_flow("frame_0001.flo")
field.flow, field.valid                         # (2, height, width) in pixels, (height, width)

pairs = eq.data.load("layers", size=(96, 128))
first, second, flow, valid = pairs.train.batch(torch.arange(8))
own = eq.data.flow.load("walks")                # walks/first, walks/second, walks/flow
"""

from equilibria.zoo.flow.data.drawn import Motion
from equilibria.zoo.flow.data.folder import load
from equilibria.zoo.flow.data.formats import FlowField, read_flow, write_flow
from equilibria.zoo.flow.data.layers import Layers
from equilibria.zoo.flow.data.pairs import FlowPair, FlowSet, PairFiles, Pairs

__all__ = [
    "FlowField",
    "FlowPair",
    "FlowSet",
    "Layers",
    "Motion",
    "PairFiles",
    "Pairs",
    "load",
    "read_flow",
    "write_flow",
]
