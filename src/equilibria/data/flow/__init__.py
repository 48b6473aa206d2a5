"""Optical flow: files, pairs of images with their flow, and generated pairs.

field = eq.data.flow.read_flow("frame_0001.flo")
field.flow, field.valid                         # (2, height, width) in pixels, (height, width)

pairs = eq.data.load("layers", size=(96, 128))
first, second, flow, valid = pairs.train.batch(torch.arange(8))
"""

from equilibria.data.flow.drawn import Motion
from equilibria.data.flow.field import FlowField
from equilibria.data.flow.formats import read_flow, write_flow
from equilibria.data.flow.layers import Layers
from equilibria.data.flow.pairs import FlowSet, Pair, Pairs

__all__ = ["FlowField", "FlowSet", "Layers", "Motion", "Pair", "Pairs", "read_flow", "write_flow"]
