"""Drawn discs, squares and triangles of any colour: segmentation without a download."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from equilibria.zoo.io.remote import Entry, Files
from equilibria.zoo.vision.data.segmentation.masks import (
    Kept,
    MaskedImages,
    SegmentationSet,
    Size,
    check_rgb,
    nearest,
)

SIZE = (48, 64)
LABELS = ("ground", "disc", "square", "triangle")
COLOURS = ((40, 40, 60), (255, 60, 60), (60, 200, 255), (255, 220, 0))
COUNTS = {"train": 600, "valid": 100, "test": 100}
SHAPES = (1, 3)
"""Fewest and most shapes of an image; later ones hide earlier ones."""


def read(files: Files, *, size: Size | None = None, channels: int | None = None) -> SegmentationSet:
    """600 training, 100 validation and 100 test images with masks, drawn with fixed seeds.

    On a ground whose colour runs from one corner to another, with noise, lie one to three shapes of
    random colour, size, place and rotation: neither colour nor place tells the class of a pixel.

    Args:
        files: None are needed.
        size: Height and width that images and masks are brought to; None for 48 x 64.
        channels: 3 or None: images are RGB.

    Raises:
        ValueError: If `channels` is 1.
    """
    check_rgb(channels, files.entry.title)
    splits, total = {}, hashlib.sha256()
    for seed, (split, count) in enumerate(COUNTS.items()):
        generator = np.random.default_rng([17, seed])
        pairs = [_draw(generator) for _ in range(count)]
        for image, mask in pairs:
            total.update(image.tobytes() + mask.tobytes())
        splits[split] = _images(split, pairs, size)
    return SegmentationSet(
        title="shapes (drawn)",
        train=splits["train"],
        test=splits["test"],
        valid=splits["valid"],
        labels=LABELS,
        colours=COLOURS,
        checksum=f"sha256:{total.hexdigest()}",
    )


def _draw(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """An image, uint8 (height, width, 3), and its mask."""
    height, width = SIZE
    down, across = np.mgrid[:height, :width].astype(np.float64)
    ends = generator.uniform(40, 215, (2, 3))
    share = (down / height + across / width)[..., None] / 2
    image = ends[0] * (1 - share) + ends[1] * share
    mask = np.zeros(SIZE, np.uint8)
    for _ in range(generator.integers(SHAPES[0], SHAPES[1] + 1)):
        kind = int(generator.integers(1, len(LABELS)))
        radius = generator.uniform(9, 15)
        middle = generator.uniform((6, 6), (height - 6, width - 6))
        angle = generator.uniform(0, 2 * np.pi)
        y, x = down - middle[0], across - middle[1]
        u, v = x * np.cos(angle) + y * np.sin(angle), y * np.cos(angle) - x * np.sin(angle)
        inside = {
            1: u**2 + v**2 < radius**2,
            2: np.maximum(abs(u), abs(v)) < 0.85 * radius,
            3: (v > -0.6 * radius) & (abs(u) * np.sqrt(3) + v < 1.1 * radius),
        }[kind]
        image[inside] = generator.uniform(0, 255, 3)
        mask[inside] = kind
    image += generator.normal(0, 8, image.shape)
    return image.round().clip(0, 255).astype(np.uint8), mask


def _images(
    split: str, pairs: list[tuple[np.ndarray, np.ndarray]], size: Size | None
) -> MaskedImages:
    high, wide = size or SIZE
    images = torch.from_numpy(np.stack([image for image, _ in pairs])).permute(0, 3, 1, 2)
    masks = torch.from_numpy(np.stack([mask for _, mask in pairs]))
    if size is not None and size != SIZE:
        images = torch.nn.functional.interpolate(
            images.float(), size=(high, wide), mode="bilinear", antialias=True
        )
        images = images.round().clamp(0, 255).to(torch.uint8)
        rows, columns = (torch.from_numpy(lines) for lines in map(nearest, SIZE, size))
        masks = masks[:, rows[:, None], columns]
    return MaskedImages(
        names=[f"{split}-{number:03}" for number in range(len(pairs))],
        sizes=[(high, wide)] * len(pairs),
        channels=3,
        source=Kept(images.contiguous(), masks.contiguous()),
        places=range(len(pairs)),
    )


SHAPES_SET = Entry(name="shapes", title="shapes (drawn)", read=read)
