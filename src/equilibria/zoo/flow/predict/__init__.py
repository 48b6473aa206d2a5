"""Optical flow of a user's own frames, with a trained network or released weights.

`engine.go_through` takes pairs of frames in order and writes flow, a map of convergence and a row
for each into a journal, which a second call continues; `pictures` then draws all flow in colours of
one scale.
"""

from equilibria.zoo.flow.predict.engine import FOLDER, Options, go_through
from equilibria.zoo.flow.predict.frames import Frame, FramePair, FramesError, read_frame
from equilibria.zoo.flow.predict.network import Estimate, FlowNetwork, NetworkError, Wanted, load
from equilibria.zoo.flow.predict.submission import BENCHMARKS, Benchmark

__all__ = [
    "BENCHMARKS",
    "FOLDER",
    "Benchmark",
    "Estimate",
    "FlowNetwork",
    "Frame",
    "FramePair",
    "FramesError",
    "NetworkError",
    "Options",
    "Wanted",
    "go_through",
    "load",
    "read_frame",
]
