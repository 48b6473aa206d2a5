"""What can be told of an image, or of its pixels, without a network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equilibria.zoo.io.decode import resize
from equilibria.zoo.vision.data.segmentation import VOID, MaskedImages
from equilibria.zoo.vision.task import pixels

LARGEST = 32
"""Pixels a side above which images are brought to this size first."""


def read_pixels(inputs: Tensor) -> Tensor:
    """Return the pixels (count, channels * height * width) of images, no larger than `LARGEST`."""
    if max(inputs.shape[2:]) > LARGEST:
        inputs = resize(inputs, LARGEST)
    return inputs.flatten(1)


# --- boosted --------------------------------------------------------------------------------------

# What can be told of a pixel without its surroundings: boosted trees on colour and place.


SAMPLED = 200_000
"""Pixels of training images that the trees are fitted to, drawn at random with a fixed seed."""

TREES = 100


def confusion(
    train: MaskedImages, test: MaskedImages, classes: int, *, balance: float = 0.5, seed: int = 0
) -> Tensor:
    """Return the confusion matrix on `test` of trees that were fitted to pixels of `train`.

    The features of a pixel are its colours and its place from the top and from the left, as shares
    of height and width.

    Args:
        train: images to learn from.
        test: images to tell the classes of.
        classes: how many there are.
        balance: as `pixels.weigh_classes` takes it.
        seed: of the pixels that are drawn, and of the trees.

    Returns:
        (classes, classes) int64; `void` pixels of `test` are left out.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    generator = torch.Generator().manual_seed(seed)
    each = -(-SAMPLED // len(train))
    drawn: list[tuple[Tensor, Tensor]] = []
    for place in range(len(train)):
        features, targets = _pixels(train, place)
        known = torch.nonzero(targets != VOID)[:, 0]
        chosen = known[torch.randperm(len(known), generator=generator)[:each]]
        drawn.append((features[chosen], targets[chosen]))
    features = torch.cat([each for each, _ in drawn])
    targets = torch.cat([each for _, each in drawn])
    weights = pixels.weigh_classes(torch.bincount(targets, minlength=classes), balance)[targets]
    options: dict[str, Any] = {"early_stopping": False}  # "auto" is all that its stubs know
    trees = HistGradientBoostingClassifier(max_iter=TREES, random_state=seed, **options)
    trees.fit(features.numpy(), targets.numpy(), sample_weight=weights.numpy())
    matrix = torch.zeros(classes, classes, dtype=torch.int64)
    for place in range(len(test)):
        features, targets = _pixels(test, place)
        answers = torch.from_numpy(trees.predict(features.numpy())).long()
        matrix += pixels.confusion(answers, targets, classes)
    return matrix


def _pixels(images: MaskedImages, place: int) -> tuple[Tensor, Tensor]:
    """Features (pixels, channels + 2) and classes (pixels,) of an image."""
    image, mask = images.image(place).float(), images.mask(place)
    height, width = mask.shape
    down = (torch.arange(height) / height)[:, None].expand(height, width)
    across = (torch.arange(width) / width).expand(height, width)
    features = torch.cat([image, down[None], across[None]])
    return features.flatten(1).T.contiguous(), mask.flatten().long()
