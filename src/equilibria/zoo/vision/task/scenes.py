"""Batches of images with a class for each pixel, changed at random, image and mask together."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from equilibria.run.tasks.feed import Batch, Part
from equilibria.run.tasks.normalisation import Statistics
from equilibria.zoo.io.ahead import AheadFeed
from equilibria.zoo.vision.data.segmentation import VOID, MaskedImages

__all__ = ["Scenes", "View", "seen"]

DRAWS = 7
"""Numbers that decide how one image is seen: scale, two of the place, mirror, three of colour."""

_GREY = (0.299, 0.587, 0.114)  # Rec. 601: the weights of red, green and blue


@dataclass(frozen=True, kw_only=True)
class View:
    """How training images are seen.

    Args:
        crop: height and width of what is shown; None for the image's own.
        scale: smallest and largest factor by which an image is made larger, even in its logarithm.
        flip: whether images are mirrored left to right at random.
        colour: by how much brightness, contrast and saturation vary: factors within 1 - colour and
            1 + colour.
    """

    crop: tuple[int, int] | None = None
    scale: tuple[float, float] = (1.0, 1.0)
    flip: bool = False
    colour: float = 0.0


def seen(image: Tensor, mask: Tensor, view: View, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Return an image and its mask as training sees them.

    Colours are interpolated linearly, classes taken from the nearest pixel; without scaling, pixels
    are the image's own. Where an image is
    smaller than the crop, what is left is 0 (before normalisation) and `VOID`.

    Args:
        image: float32 in [0, 1], (channels, height, width).
        mask: classes, uint8, (height, width).
        view: how.
        drawn: `DRAWS` numbers in [0, 1) that decide it.
    """
    small, large = view.scale
    chance, down, right, mirror, *colours = drawn.tolist()
    scale = small * (large / small) ** chance
    if view.colour:
        image = _coloured(image, [1 + view.colour * (2 * each - 1) for each in colours])
    height, width = image.shape[1:]
    high, wide = view.crop or (height, width)
    flip = view.flip and mirror < 0.5
    if (high, wide) == (height, width) and scale == 1.0:
        return (image.flip(-1), mask.flip(-1)) if flip else (image, mask)
    # Places of the crop's pixels in the image; grid_sample's -1 and 1 are its outer edges.
    rows = _places(high, height, scale, down)
    columns = _places(wide, width, scale, right)
    if flip:
        columns = columns.flip(0)
    grid = torch.stack([columns.expand(high, wide), rows[:, None].expand(high, wide)], 2).unsqueeze(
        0
    )
    # Classes from 1, so that the 0 beyond the edge is told from class 0.
    numbers = mask[None, None].float() + 1
    classes = functional.grid_sample(numbers, grid, mode="nearest", align_corners=False)[0, 0]
    inside = classes > 0
    # Colours at the edge are the image's own, not half of what lies beyond.
    shown = functional.grid_sample(image[None], grid, padding_mode="border", align_corners=False)
    return shown[0] * inside, torch.where(inside, classes - 1, VOID).to(torch.uint8)


def _places(shown: int, length: int, scale: float, chance: float) -> Tensor:
    """Where the pixels of a crop lie along a side, from -1 to 1."""
    spare = length - shown / scale  # negative where the crop is larger than the image
    # Without scaling, whole pixels: in between two of them the image would be blurred.
    whole = math.copysign(int(chance * (abs(spare) + 1)), spare)
    begin = whole if scale == 1.0 else chance * spare
    middles = begin + (torch.arange(shown) + 0.5) / scale
    return 2 * middles / length - 1


def _coloured(image: Tensor, factors: list[float]) -> Tensor:
    """Return an image with other brightness, contrast and saturation."""
    brightness, contrast, saturation = factors
    image = image * brightness
    image = contrast * image + (1 - contrast) * image.mean()
    if len(image) == 3:
        grey = torch.einsum("chw,c->hw", image, torch.tensor(_GREY))
        image = saturation * image + (1 - saturation) * grey
    return image.clamp(0, 1)


class Scenes(AheadFeed):
    """Images with masks, in an order of their own in each pass, seen at random.

    Args:
        images: what to learn from.
        batch_size: images a batch, of all processes together.
        seed: of the orders, and of how images are seen.
        view: how they are seen.
        statistics: of normalised images; None for pixels in [0, 1].

    Raises:
        ValueError: the images do not fill one batch.
    """

    stream = "scenes"

    def __init__(
        self,
        images: MaskedImages,
        batch_size: int,
        seed: int,
        *,
        view: View,
        statistics: Statistics | None = None,
    ) -> None:
        super().__init__(len(images), batch_size, seed)
        self.images, self.view, self.statistics = images, view, statistics

    @override
    def made(self, places: Tensor, step: int, part: Part) -> Batch:
        pairs = [
            seen(self.images.image(k) / 255, self.images.mask(k), self.view, each)
            for k, each in zip(places.tolist(), self.drawn(step, part, DRAWS), strict=True)
        ]
        inputs = torch.stack([image for image, _ in pairs])
        if self.statistics is not None:
            inputs = self.statistics.apply(inputs)
        return Batch(inputs, torch.stack([mask for _, mask in pairs]).long())
