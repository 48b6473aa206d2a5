"""Signals for coordinate networks: sounds, images, films and shapes in [-1, 1].

signal = eq.data.signal.read("cat.png")            # or .wav, .gif, .mp4, .obj, a folder of frames
inputs, targets = signal.points[:], signal.targets  # (samples, axes), (samples, channels)
large = signal.field.points(size=(1024, 1024))      # the same picture with more pixels
for part in large.chunks(65_536): ...

shape = eq.data.signal.read("torus.obj")
points, inside = shape.near_surface(50_000, seed=0)
"""

from equilibria.zoo.signal.data.field import Points, SignalField
from equilibria.zoo.signal.data.files import (
    field_of,
    kind_of,
    read,
    read_film,
    read_image,
    read_sound,
    write_film,
    write_image,
    write_sound,
)
from equilibria.zoo.signal.data.mesh import Mesh, read_mesh, write_mesh
from equilibria.zoo.signal.data.sets import SignalSet
from equilibria.zoo.signal.data.shape import (
    SOLIDS,
    Occupancy,
    Shape,
    ShapeField,
    read_shape,
    solid,
    surface,
)
from equilibria.zoo.signal.data.signal import Quarters, Signal, iou, psnr

__all__ = [
    "SOLIDS",
    "Mesh",
    "Occupancy",
    "Points",
    "Quarters",
    "Shape",
    "ShapeField",
    "Signal",
    "SignalField",
    "SignalSet",
    "field_of",
    "iou",
    "kind_of",
    "psnr",
    "read",
    "read_film",
    "read_image",
    "read_mesh",
    "read_shape",
    "read_sound",
    "solid",
    "surface",
    "write_film",
    "write_image",
    "write_mesh",
    "write_sound",
]
