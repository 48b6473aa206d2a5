"""Image data sets: named ones, and a user's folder with one subfolder per class.

    pets = images.load("pets", size=64)               # pets/cat/*.jpg, pets/dog/*.jpg
    inputs, targets = pets.train[:16]                 # decoded now, float32 in [0, 1]

Only the arrays of CIFAR's Python version are ever unpickled.
"""

from equilibria.zoo.io.image_files import ImageFiles
from equilibria.zoo.vision.data.images.folder import ImageFolder, load

__all__ = ["ImageFiles", "ImageFolder", "load"]
