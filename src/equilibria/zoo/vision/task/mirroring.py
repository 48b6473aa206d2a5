"""Do mirrored images still show what they are said to show? Asked of the data themselves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from equilibria.run.data.dataset import Samples
from equilibria.words import percent
from equilibria.zoo.io.resize import resized

ASKED = 2_000
"""Images that the question is put to, spread evenly over all of them."""

SIDE = 16
"""Pixels a side at which images are compared: small moves and noise matter less there."""

NEIGHBOURS = 3


@dataclass(frozen=True, kw_only=True)
class Mirroring:
    """How often the nearest neighbours of held-out images have their class.

    Attributes:
        held_out: images that were asked about.
        plain: share of them whose neighbours have their class.
        mirrored: the same after they were mirrored left to right, and their neighbours not.
        lost: right as they are and wrong mirrored, a number of images.
        gained: wrong as they are and right mirrored.
    """

    held_out: int
    plain: float
    mirrored: float
    lost: int
    gained: int

    @property
    def harmless(self) -> bool:
        """Whether mirrored images are told as well, up to chance.

        Were it all the same to an image, `lost` and `gained` would be halves of a binomial: lost -
        gained has mean 0 and deviation sqrt(lost + gained), and two of these are exceeded once in
        44 times (McNemar 1947).
        """
        return self.lost - self.gained <= 2.0 * (self.lost + self.gained) ** 0.5

    def __str__(self) -> str:
        return (
            f"the nearest neighbours of {self.held_out} held-out images have their class in "
            f"{percent(self.plain)}, and in {percent(self.mirrored)} once they are mirrored"
        )


def examined(images: Samples) -> Mirroring:
    """Compare images, and their mirror images, with others of the training images.

    Every other image is held out; each is given the class that most of its `NEIGHBOURS` among the
    rest have, by the distance of pixels at `SIDE` x `SIDE`, less their mean and over their norm.
    Letters and digits lose much by being mirrored, things that can be met from either side nothing.
    Nothing is drawn at random, and no test image is seen.

    Args:
        images: (n, channels, height, width) with classes (n,), to learn from.
    """
    count = min(len(images), ASKED)
    places = torch.arange(count) * len(images) // count
    # Held out is every other image of a class, however the images are sorted.
    targets = images.targets[places]
    places = places[torch.argsort(targets, stable=True)]
    known, asked = places[0::2], places[1::2]
    features, classes = _features(images, known)
    plain, truth = _features(images, asked)
    mirrored, _ = _features(images, asked, mirrored=True)
    right = [_told(each, features, classes) == truth for each in (plain, mirrored)]
    return Mirroring(
        held_out=len(asked),
        plain=_share(right[0]),
        mirrored=_share(right[1]),
        lost=int((right[0] & ~right[1]).sum()),
        gained=int((right[1] & ~right[0]).sum()),
    )


def _features(images: Samples, places: Tensor, *, mirrored: bool = False) -> tuple[Tensor, Tensor]:
    """Rows of length 1 (count, channels * SIDE * SIDE), and the classes (count,)."""
    inputs, targets = images[places]
    small = resized(inputs.flip(-1) if mirrored else inputs, SIDE).flatten(1)
    return functional.normalize(small - small.mean(1, keepdim=True)), targets


def _told(asked: Tensor, known: Tensor, classes: Tensor) -> Tensor:
    """Return the class of most of the nearest of `known`, for each row of `asked`.

    Of classes that are as frequent, that of the nearest.
    """
    nearest = (asked @ known.T).topk(min(NEIGHBOURS, len(known)), dim=1).indices
    votes = functional.one_hot(classes[nearest], int(classes.max()) + 1).sum(1)
    first = functional.one_hot(classes[nearest[:, 0]], votes.shape[1])
    return (2 * votes + first).argmax(1)


def _share(right: Tensor) -> float:
    return float(right.double().mean()) if len(right) else 0.0
