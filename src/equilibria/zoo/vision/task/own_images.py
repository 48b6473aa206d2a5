"""Classification of one's own images, with settings that follow from them."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from equilibria.run.data import Dataset, available
from equilibria.run.data.dataset import Samples
from equilibria.run.tasks import regression
from equilibria.run.tasks.base import TaskConfig, check_split
from equilibria.run.tasks.normalization import Normalized
from equilibria.words import percent
from equilibria.zoo.io import headers, layout
from equilibria.zoo.io.decode import resize
from equilibria.zoo.vision.data.shards import dataset as shards
from equilibria.zoo.vision.task import baselines
from equilibria.zoo.vision.task.classification import ClassificationTask, ImageClassification
from equilibria.zoo.vision.task.seen import Auto, ImageTaskConfig

# --- mirroring ------------------------------------------------------------------------------------

# Do mirrored images still show what they are said to show? Asked of the data themselves.


ASKED = 2_000
"""Images that the question is put to, spread evenly over all of them."""

SIDE = 16
"""Pixels a side at which images are compared: small moves and noise matter less there."""

NEIGHBORS = 3


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


def compare_mirrored(images: Samples) -> Mirroring:
    """Compare images, and their mirror images, with others of the training images.

    Every other image is held out; each is given the class that most of its `NEIGHBORS` among the
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
    right = [_classify_nearest(each, features, classes) == truth for each in (plain, mirrored)]
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
    small = resize(inputs.flip(-1) if mirrored else inputs, SIDE).flatten(1)
    return functional.normalize(small - small.mean(1, keepdim=True)), targets


def _classify_nearest(asked: Tensor, known: Tensor, classes: Tensor) -> Tensor:
    """Return the class of most of the nearest of `known`, for each row of `asked`.

    Of classes that are as frequent, that of the nearest.
    """
    nearest = (asked @ known.T).topk(min(NEIGHBORS, len(known)), dim=1).indices
    votes = functional.one_hot(classes[nearest], int(classes.max()) + 1).sum(1)
    first = functional.one_hot(classes[nearest[:, 0]], votes.shape[1])
    return (2 * votes + first).argmax(1)


def _share(right: Tensor) -> float:
    return float(right.double().mean()) if len(right) else 0.0


# --- own images -----------------------------------------------------------------------------------


SIZES = (64, 48, 32)
"""Pixels a side that images are brought to, by `size: auto`."""

PASSES = 48
"""How often each image is shown, by `epoch_steps: auto`, where that is neither too few nor too many
images in all."""

LEAST, MOST = 24_000, 72_000
"""Images that are shown in a whole run, at least and at most; at most of 32 x 32 pixels, and of
larger ones as many fewer."""

OFTEN = 20
"""How often each image must be shown for a size above the smallest."""

SHIFTED = 0.1
"""Share of a side by which images are moved at most, by `shift: auto`."""


@dataclass(frozen=True, kw_only=True)
class OwnImages(ImageTaskConfig):
    """Which of several classes does an image show? What is `auto` follows from the images.

    Args:
        data: path of a folder of images that has a folder for each class, or of the indexes of
            shards that are streamed, as `--data FOLDER`; or name of a data set.
        size: pixels of each side that images are brought to, in a folder the middle square of each.
            auto: 64, 48 or 32, the largest that half of the images have, and at which the run can
            still show each of them 20 times. null: images as they are, which must all have one
            size.
        channels: 3 or 1, to have the images of a folder converted to RGB or grey; auto: grey where
            all of them are; null for images that are all RGB or all grey.
        samples: training images to learn from, as many of each class; null for all.
        valid: training images that are set aside, and evaluated after each epoch in place of the
            test images; null for none.
        flip: mirror training images left to right at random. auto: unless training images that are
            mirrored are taken for those of another class by their nearest neighbours.
        shift: pixels by which training images are moved at random, at most, along each side; auto:
            a tenth of the shorter side.
        crop: minimum share of a training image's area that is shown, chosen at random; null for
            whole images.
        normalize: give each channel mean 0 and deviation 1 over the images that are learned from.
        label_smoothing: share of a target's weight that is spread over all classes, in [0, 1).
    """

    data: str | None = None
    size: int | Auto | None = "auto"
    channels: int | Auto | None = "auto"
    samples: int | None = None
    valid: int | None = None
    flip: bool | Auto = "auto"
    shift: int | Auto = "auto"
    crop: float | None = None
    normalize: bool = True
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        self.plain()  # which refuses what is none of `auto` and impossible

    def plain(self) -> ImageClassification:
        """Return the same task without what follows from the data: null or none in its place."""
        values: dict[str, Any] = vars(self)
        given = {k: value for k, value in values.items() if k == "data" or value != "auto"}
        return ImageClassification(**given)

    @override
    def load(self, data_dir: Path | None = None) -> OwnImagesTask:
        settled = self._fill_auto(data_dir) if self.data is not None else self
        return OwnImagesTask(settled, data_dir)

    @override
    def load_other(self, run: Path, data_dir: Path | None = None) -> ClassificationTask:
        """Read images as the run has seen its own; see `ImageClassification.load_other`."""
        return self.plain().load_other(run, data_dir)

    def _fill_auto(self, data_dir: Path | None) -> OwnImages:
        """Return this task with the size and the channels that its images ask for."""
        if "auto" not in (self.size, self.channels):
            return self
        found = _look_at(self, data_dir)
        return replace(
            self,
            size=side(found) if self.size == "auto" else self.size,
            channels=found.channels if self.channels == "auto" else self.channels,
        )


class Looked(NamedTuple):
    """What is known of images before any of them is decoded.

    Attributes:
        images: how many there are to learn from.
        shorter: median of the shorter sides, in pixels.
        channels: 3 or 1; None for a named data set, which has those that it has.
    """

    images: int
    shorter: float
    channels: int | None


def side(found: Looked) -> int:
    """Return the pixels a side that images are brought to, by `size: auto`."""
    for size in SIZES[:-1]:
        if found.shorter >= size and OFTEN * found.images * cost(size * size) <= MOST:
            return size
    return SIZES[-1]


def cost(area: float) -> float:
    """Return what an image of so many pixels costs, in units of one of 32 x 32."""
    return area / 32**2


def pace(count: int, area: float, batch_size: int, epochs: int) -> int:
    """Return the steps that count as one epoch, by `epoch_steps: auto`.

    A whole run shows each image `PASSES` times, but no fewer than `LEAST` images in all and no more
    than cost what `MOST` of 32 x 32 pixels do: there is an end to it, whatever their number.

    Args:
        count: training images.
        area: pixels of each.
        batch_size: images a step.
        epochs: of the run.
    """
    shown = min(max(PASSES * count, LEAST), MOST / cost(area))
    return max(1, math.ceil(shown / (batch_size * epochs)))


class OwnImagesTask(ClassificationTask):
    """Images (n, channels, height, width) with labels (n,), and what they are compared with.

    Args:
        own: what the recipe says, with size and channels.
        data_dir: folder to look for data sets in, before EQUILIBRIA_DATA.

    Attributes:
        mirroring: why images are mirrored or not; None where the recipe says.
    """

    baseline = "logistic regression on pixels"

    def __init__(self, own: OwnImages, data_dir: Path | None) -> None:
        config = own.plain()
        if config.data is None:
            config.load()  # says what is missing
        super().__init__(config, data_dir)
        self.mirroring: Mirroring | None = None
        flip = own.flip
        if flip == "auto":
            self.mirroring = compare_mirrored(self._training_images(ASKED))
            flip = self.mirroring.harmless
        shift = own.shift
        if shift == "auto":
            shift = round(SHIFTED * min(self.shape[1:]))
        self.own = replace(own, flip=flip, shift=shift)
        self.config = self.own.plain()

    @override
    def settle(self, config: TaskConfig) -> TaskConfig:
        return self.own

    @override
    def pace(self, batch_size: int, epochs: int) -> int:
        _, height, width = self.shape
        return pace(len(self.samples["train"]), height * width, batch_size, epochs)

    @override
    def reference(self, split: str) -> dict[str, float]:
        asked = cast(Samples, self.samples[check_split(self, split)])
        train = self._training_images(regression.MOST)
        fitted = regression.fit_regression(train, self.classes, baselines.read_pixels)
        return fitted.figures(asked)

    def _training_images(self, most: int) -> Samples:
        """Return training images, `most` of which will do: so many of the first in shards."""
        if self.shards is None:
            return cast(Samples, self.samples["train"])  # all that such a task is made of
        first = self.shards.first(most)
        return first if self.statistics is None else Normalized(first, self.statistics)


def _look_at(own: OwnImages, data_dir: Path | None) -> Looked:
    """Look at the images of a task before they are decoded.

    Raises:
        DataError: they are missing or cannot be read; the message names the file.
        ValueError: there is no such data set.
    """
    if own.data in available(Dataset):
        task = replace(own.plain(), normalize=False).load(data_dir)
        return Looked(len(task.samples["train"]), min(task.shape[1:]), None)
    root = Path(own.data or "").expanduser()
    if shards.is_sharded(root):
        index = shards.load(root, size=SIZES[-1], channels=3)
        count = len(index.splits["train"])
        return Looked(count, index.shorter, 1 if index.gray else 3)
    if not root.is_dir():
        own.plain().load(data_dir)  # says what is wrong, or has names of folders of its own
    found = layout.read(root)
    names = [name for part in found.names.values() for name in part]
    scanned, _ = headers.scan(root, names)
    count = len(found.names[layout.TRAIN]) - (own.valid or 0)
    gray = all(header.mode in ("1", "L", "LA") for header in scanned)
    return Looked(
        min(max(count, 1), own.samples or count),
        statistics.median(min(header.height, header.width) for header in scanned),
        1 if gray else 3,
    )
