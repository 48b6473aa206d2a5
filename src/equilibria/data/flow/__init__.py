"""Optical flow: files, pairs of images with their flow, and generated pairs.

field = eq.data.flow.read_flow("frame_0001.flo")
field.flow, field.valid                         # (2, height, width) in pixels, (height, width)
"""

from equilibria.data.flow.field import FlowField
from equilibria.data.flow.formats import read_flow, write_flow

__all__ = ["FlowField", "read_flow", "write_flow"]
