"""Sets of photographs: named ones, and a folder of the user's with a folder a class.

    images = eq.data.images.load("pets", size=64)     # pets/cat/*.jpg, pets/dog/*.jpg
    inputs, targets = images.train[:16]               # decoded now, float32 in [0, 1]

Nothing from disk is unpickled but the arrays of CIFAR's Python version, and of these nothing that
is not an array.
"""

from equilibria.data.images.files import ImageFiles
from equilibria.data.images.folder import ImageFolder, load

__all__ = ["ImageFiles", "ImageFolder", "load"]
