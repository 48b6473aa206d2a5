"""What is done to training images at random, drawn for each sample; see `draws`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from equilibria import draws
from equilibria.run.tasks.feed import Batch, Part
from equilibria.run.tasks.normalization import PixelStatistics
from equilibria.zoo.io import image_files
from equilibria.zoo.io.prefetch import AheadFeed
from equilibria.zoo.vision.data.images import ImageFiles
from equilibria.zoo.vision.data.segmentation import VOID, MaskedImages


def shift_images(images: Tensor, limit: int) -> Tensor:
    """Return images (n, channels, height, width), each moved by its own random number of pixels.

    Both numbers, down and right, are uniform from -`limit` to `limit`; the edge is repeated where
    nothing is left to show.
    """
    count, channels, height, width = images.shape
    padded = functional.pad(images, (limit, limit, limit, limit), mode="replicate")
    corner = ((2 * limit + 1) * _uniform(count, 2)).long()
    rows = corner[:, :1] + torch.arange(height)
    columns = corner[:, 1:] + torch.arange(width)
    return padded[
        torch.arange(count)[:, None, None, None],
        torch.arange(channels)[:, None, None],
        rows[:, None, :, None],
        columns[:, None, None, :],
    ]


def flip_images(images: Tensor) -> Tensor:
    """Return images (n, channels, height, width), each mirrored left to right or not, evenly."""
    mirrored = _uniform(len(images), 1) < 0.5
    return torch.where(mirrored[:, :, None, None], images.flip(-1), images)


def crop_images(images: Tensor, smallest: float) -> Tensor:
    """Return images (n, channels, height, width), each a random part of it at the full size.

    The part is a box of `crops.boxes`; its pixels are interpolated linearly, with the edge of the
    image beyond it. A part is never larger than the image: nothing is averaged, so that nothing
    can alias.

    Args:
        images: (n, channels, height, width).
        smallest: minimum share of the area that a part has, in (0, 1].
    """
    count, _, height, width = images.shape
    box = image_files.boxes(_uniform(count, 4), smallest, height, width)
    top, left, high, wide = box.unbind(1)
    # grid_sample's -1 and 1 are the outer edges of the image.
    scale = torch.stack([wide / width, high / height], 1)
    centre = torch.stack([(2 * left + wide) / width, (2 * top + high) / height], 1) - 1
    theta = torch.cat([torch.diag_embed(scale), centre.unsqueeze(2)], 2).to(images.dtype)
    grid = functional.affine_grid(theta, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def prepare(images: Tensor, statistics: PixelStatistics | None) -> Tensor:
    """Return images (n, channels, height, width) normalised, where there are statistics."""
    return images if statistics is None else statistics.apply(images)


def _uniform(count: int, numbers: int) -> Tensor:
    """Draw so many numbers in [0, 1) for each of `count` samples."""
    return draws.for_samples(torch.empty(count, numbers, dtype=torch.float64), Tensor.uniform_)


# --- photographs ----------------------------------------------------------------------------------

# Batches of images that are decoded while the model learns from the batch before.


class ImageFeed(AheadFeed):
    """Images from their files, in an order of their own in each pass, each a random part of it.

    Args:
        files: what to learn from.
        batch_size: images a batch, of all processes together.
        seed: of the orders and the parts.
        crop: minimum share of an image's area that is shown; None for what the files show.
        statistics: of normalised images; None for pixels in [0, 1].

    Raises:
        ValueError: the images do not fill one batch.
    """

    stream = "crop"

    def __init__(
        self,
        files: ImageFiles,
        batch_size: int,
        seed: int,
        *,
        crop: float | None = None,
        statistics: PixelStatistics | None = None,
    ) -> None:
        super().__init__(len(files), batch_size, seed)
        self.files, self.crop, self.statistics = files, crop, statistics

    @override
    def make_batch(self, places: Tensor, step: int, part: Part) -> Batch:
        given: tuple[Any, ...] = ()
        if self.crop is not None:
            numbers = image_files.draw(self.order.batch_size, self.generator(step))
            given = (numbers[part.of(self.order.batch_size)], self.crop)
        inputs = prepare(self.files.images(places, *given) / 255, self.statistics)
        return Batch(inputs, self.files.targets[places])


# --- scenes ---------------------------------------------------------------------------------------

# Batches of images with a class for each pixel, changed at random, image and mask together.


DRAWS = 7
"""Numbers that decide how one image is seen: scale, two of the place, mirror, three of colour."""

_GRAY = (0.299, 0.587, 0.114)  # Rec. 601: the weights of red, green and blue


@dataclass(frozen=True, kw_only=True)
class SceneView:
    """How training images are seen.

    Args:
        crop: height and width of what is shown; None for the image's own.
        scale: smallest and largest factor by which an image is made larger, even in its logarithm.
        flip: whether images are mirrored left to right at random.
        color: by how much brightness, contrast and saturation vary: factors within 1 - color and
            1 + color.
    """

    crop: tuple[int, int] | None = None
    scale: tuple[float, float] = (1.0, 1.0)
    flip: bool = False
    color: float = 0.0


def apply_view(
    image: Tensor, mask: Tensor, view: SceneView, drawn: Tensor
) -> tuple[Tensor, Tensor]:
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
    chance, down, right, mirror, *colors = drawn.tolist()
    scale = small * (large / small) ** chance
    if view.color:
        image = _jitter_colors(image, [1 + view.color * (2 * each - 1) for each in colors])
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


def _jitter_colors(image: Tensor, factors: list[float]) -> Tensor:
    """Return an image with other brightness, contrast and saturation."""
    brightness, contrast, saturation = factors
    image = image * brightness
    image = contrast * image + (1 - contrast) * image.mean()
    if len(image) == 3:
        gray = torch.einsum("chw,c->hw", image, torch.tensor(_GRAY))
        image = saturation * image + (1 - saturation) * gray
    return image.clamp(0, 1)


class SceneFeed(AheadFeed):
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
        view: SceneView,
        statistics: PixelStatistics | None = None,
    ) -> None:
        super().__init__(len(images), batch_size, seed)
        self.images, self.view, self.statistics = images, view, statistics

    @override
    def make_batch(self, places: Tensor, step: int, part: Part) -> Batch:
        pairs = [
            apply_view(self.images.image(k) / 255, self.images.mask(k), self.view, each)
            for k, each in zip(places.tolist(), self.draw_numbers(step, part, DRAWS), strict=True)
        ]
        inputs = prepare(torch.stack([image for image, _ in pairs]), self.statistics)
        return Batch(inputs, torch.stack([mask for _, mask in pairs]).long())
