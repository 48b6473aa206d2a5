"""Images with a class for each pixel: named data sets, and a user's folder.

scenes = eq.data.load("camvid", size=(120, 160))
scenes.train.image(0), scenes.train.mask(0)     # uint8; 255 where a pixel has no class

own = segmentation.load("plants")               # plants/images, plants/masks, classes.txt
"""

from equilibria.zoo.vision.data.segmentation.folder import load
from equilibria.zoo.vision.data.segmentation.masks import VOID, MaskedImages, SegmentationSet

__all__ = ["VOID", "MaskedImages", "SegmentationSet", "load"]
