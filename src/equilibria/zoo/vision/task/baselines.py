"""What a linear map of raw pixels can tell of an image: multinomial logistic regression."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from equilibria.run.data.dataset import Samples
from equilibria.zoo.io.decode import resize
from equilibria.zoo.vision.data.segmentation import VOID, MaskedImages
from equilibria.zoo.vision.task import pixels

LARGEST = 32
"""Pixels a side above which images are brought to this size first."""

MOST = 10_000
"""Images that are learned from, spread evenly over all of them."""

STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Inverse strengths C of the penalty, ||W||^2 / (2 C) beside the sum of the losses; the best on a
fifth of the images that are learned from is taken. Small and few images want the larger ones."""

FALLS = 2
"""Strengths in a row that are worse than the best, after which no weaker penalty is tried."""

ITERATIONS = 100

_BLOCK = 2_000


@dataclass(frozen=True)
class Regression:
    """Multinomial logistic regression of pixels, fitted.

    Attributes:
        model: of scikit-learn.
        classes: how many there are.
        strength: C, as it was chosen.
    """

    model: Any
    classes: int
    strength: float

    def figures(self, samples: Samples) -> dict[str, float]:
        """Return the accuracy on images (n, channels, height, width), by the metric's name."""
        right = 0
        for places in torch.arange(len(samples)).split(_BLOCK):
            rows, targets = _rows(samples, places)
            chances = numpy.zeros((len(places), self.classes))
            chances[:, self.model.classes_] = self.model.predict_proba(rows)
            right += int((chances.argmax(1) == targets).sum())
        return {"accuracy": right / len(samples)}


def regression(train: Samples, classes: int) -> Regression:
    """Fit logistic regression to images, with the penalty that is best on a fifth of them.

    Args:
        train: images (n, channels, height, width) with classes (n,).
        classes: how many there are.
    """
    count = min(len(train), MOST)
    rows, targets = _rows(train, torch.arange(count) * len(train) // count)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).numpy()
    aside, learned = order[: count // 5], order[count // 5 :]
    strength, best, falls = STRENGTHS[0], -1.0, 0
    if len(aside) and len(numpy.unique(targets[learned])) > 1:
        for each in STRENGTHS:
            fitted = _fit(rows[learned], targets[learned], each)
            score = fitted.score(rows[aside], targets[aside])
            falls = falls + 1 if score < best else 0
            if score > best:
                strength, best = each, score
            if falls == FALLS:
                break
    return Regression(_fit(rows, targets, strength), classes, strength)


def _fit(rows: Any, targets: Any, strength: float) -> Any:
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    with warnings.catch_warnings():
        # What 100 iterations leave undone is in the last digits.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=strength, max_iter=ITERATIONS).fit(rows, targets)


def _rows(samples: Samples, places: Tensor) -> tuple[Any, Any]:
    """Pixels (count, channels * height * width) and classes (count,) as arrays."""
    inputs, targets = samples[places]
    if max(inputs.shape[2:]) > LARGEST:
        inputs = resize(inputs, LARGEST)
    return inputs.flatten(1).numpy(), targets.numpy()


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
