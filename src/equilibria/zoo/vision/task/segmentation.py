"""Segmentation of images: the class of each pixel."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.run.data import available, load
from equilibria.run.data.storage import DataError
from equilibria.run.models import Model, ModelConfig
from equilibria.run.tasks.base import TaskConfig, check_split
from equilibria.run.tasks.feed import WHOLE, Batch, Feed, Part
from equilibria.run.tasks.normalization import PixelStatistics
from equilibria.zoo.io.tasks import (
    check_channels,
    check_range,
    check_sizes,
    require_data,
    spread_places,
)
from equilibria.zoo.vision.data.segmentation import VOID, MaskedImages, SegmentationSet
from equilibria.zoo.vision.model.config import VisionConfig
from equilibria.zoo.vision.model.segmentation import upsample
from equilibria.zoo.vision.task import baselines, pixels
from equilibria.zoo.vision.task.batches import SceneFeed, SceneView, prepare
from equilibria.zoo.vision.task.seen import (
    IMAGES,
    Auto,
    ImageFormat,
    ImageTask,
    ImageTaskConfig,
    check_heads,
)

READ = 500
"""Images that the statistics are taken from, at most."""

AREA = 120 * 160
"""Pixels of an image, by `size: auto`."""


@dataclass(frozen=True, kw_only=True)
class ImageSegmentation(ImageTaskConfig):
    """Which class does each pixel show? Trained with the cross-entropy of pixels.

    Args:
        data: name of a data set (camvid, camvid32, cityscapes or voc), or path of a folder with
            `images` and `masks`; also `--data FOLDER`.
        size: height and width that images and masks are brought to; null for those they have.
            auto: 19,200 pixels in all (120 x 160, say) or the median of the images', of the median
            ratio of height to width, in multiples of 8; as they are where all have one size that
            is no larger.
        channels: 3 or 1, to have the images of a folder converted to RGB or grey; null for images
            that are all RGB or all grey.
        samples: training images to learn from, spread evenly over all; null for all.
        crop: height and width of the part of a training image that is shown, at a random place;
            auto for the size of images; null for whole images, which must then all have one size.
        scale: smallest and largest factor by which training images are made larger at random.
        flip: mirror training images left to right at random.
        color: by how much brightness, contrast and saturation of training images vary.
        normalize: give each channel mean 0 and deviation 1 over the images that are learned from.
        balance: weight of a class in the loss: the pixels that it has, to the power of minus this;
            0 for equal weights, 0.5 for the square root, 1 for classes that all count the same.
        hard: probability of the right class below which a pixel counts in the loss; null for all.
        hardest: share of a batch's pixels that count in any case, the hardest, where `hard` is
            given.
        auxiliary: weight of the mean loss of what a model reads from single resolutions, for a
            model that has such heads.
        presence: weight of the loss of a model's head "presence", which tells the classes that an
            image shows.
    """

    data: str | None = "camvid"
    size: tuple[int, int] | Auto | None = None
    channels: int | None = None
    samples: int | None = None
    crop: tuple[int, int] | Auto | None = None
    scale: tuple[float, float] = (1.0, 1.0)
    flip: bool = False
    color: float = 0.0
    normalize: bool = False
    balance: float = 0.0
    hard: float | None = None
    hardest: float = 0.0
    auxiliary: float = 0.0
    presence: float = 0.0

    def __post_init__(self) -> None:
        check_sizes("auto", size=self.size, crop=self.crop)
        check_range("factor", scale=self.scale)
        check_channels(self.channels)
        check_fields(self, "[1, inf)", "samples")
        check_fields(self, "(0, 1]", "hard")
        check_fields(self, "[0, 1]", "color", "hardest")
        check_fields(self, "[0, 2]", "balance")
        check_fields(self, "[0, inf)", "auxiliary", "presence")

    @override
    def load(self, data_dir: Path | None = None) -> SegmentationTask:
        return SegmentationTask(self, data_dir)

    @override
    def load_other(self, run: Path, data_dir: Path | None = None) -> SegmentationTask:
        """Read images as the run has seen its own, with its numbers of classes.

        All images of a folder that has no parts are the test images.

        Raises:
            DataError: the run has not all of their classes, or images of other channels.
        """
        seen = ImageFormat.read(run / IMAGES)
        channels = None if self.data in available(SegmentationSet) else seen.shape[0]
        return SegmentationTask(replace(self, samples=None, channels=channels), data_dir, seen)


class SegmentationTask(ImageTask):
    """Images (n, channels, height, width) with masks (n, height, width) of classes.

    Args:
        config: what the recipe says.
        data_dir: folder to look for data sets in, before EQUILIBRIA_DATA.
        seen: how a run has seen its images, for others to evaluate it on; None for its own.
    """

    unit = "pixels"
    metrics = (pixels.MEAN_IOU, pixels.PIXELS, pixels.CLASSES)
    baseline = "boosted trees"
    gallery = "segmentation"

    def __init__(
        self, config: ImageSegmentation, data_dir: Path | None, seen: ImageFormat | None = None
    ) -> None:
        how = "name a folder with --data FOLDER, with images, masks and classes.txt"
        data = require_data(config.data, "there are no images", how)
        options: dict[str, Any] = {"kind": SegmentationSet, "channels": config.channels}
        if seen is not None and data not in available(SegmentationSet):
            options["whole"] = True
        if config.size == "auto":
            whole: SegmentationSet = load(data, data_dir, **options)
            config = replace(config, size=usual_size((whole.train or whole.test).sizes))
        if config.crop == "auto":
            config = replace(config, crop=config.size)
        self.config = config
        # What is shown of a training image; "auto" is none any more.
        self.crop = None if config.crop == "auto" else config.crop
        found: SegmentationSet = load(data, data_dir, size=config.size, **options)
        splits = {"train": found.train, "valid": found.valid, "test": found.test}
        self.images = {name: each.decode_all() for name, each in splits.items() if each}
        if config.samples is not None:
            train = self.images["train"]
            places = spread_places("samples", config.samples, len(train), "images", "train")
            self.images["train"] = train.select(places)
        self.checksum = found.checksum
        self.splits = tuple(self.images)
        self.eval_split = "valid" if "valid" in self.splits else "test"
        self.source, self.colors, self.values = found.title, found.colors, found.values
        self.labels = found.labels if seen is None else seen.labels
        self.classes = len(self.labels)
        self.numbers: Tensor | None = None
        if seen is not None:
            self.baseline = ""  # other images are compared with nothing
            self.numbers = torch.full((256,), VOID)
            numbers = torch.tensor(seen.numbers(found.labels, found.title))
            self.numbers[: len(numbers)] = numbers
        channels = self.images["test"].channels
        high, wide = self._usual_size() if seen is None else seen.shape[1:]
        self.shape = (channels, high, wide)
        if seen is not None and channels != seen.shape[0]:
            raise DataError(
                f"the images of {found.title} have {channels} channels, and the run's have "
                f"{seen.shape[0]}"
            )
        self.statistics = None if seen is None else seen.statistics
        if config.normalize and seen is None:
            self.statistics = self._statistics()
        self.auxiliary = config.auxiliary
        self.metrics = pixels.confusion_metrics(self.labels)
        if config.presence:
            self.metrics += (pixels.PRESENCE,)
        self.weights = None
        if config.balance and seen is None:
            self.weights = pixels.weigh_classes(self.counts(), config.balance)

    def counts(self) -> Tensor:
        """Return the pixels of each class in the training images, (classes,)."""
        train, total = self.images["train"], torch.zeros(256, dtype=torch.int64)
        for place in range(len(train)):
            total += torch.bincount(train.mask(place).flatten().long(), minlength=256)
        return total[: self.classes]

    def _usual_size(self) -> tuple[int, int]:
        """The height and width that training images are shown at."""
        if (crop := self.crop) is not None:
            return crop
        images = self.images["train"]
        if not images.same_size:
            raise ValueError(
                f"the images of {self.source or self.config.data} differ in size: show parts of "
                "one size with task.crop, or bring all to one with task.size"
            )
        return images.sizes[0]

    def _statistics(self) -> PixelStatistics:
        train = self.images["train"]
        count = min(READ, len(train))
        places = [k * len(train) // count for k in range(count)]
        return PixelStatistics.of_blocks(train.image(k)[None] / 255 for k in places)

    @override
    def settle(self, config: TaskConfig) -> TaskConfig:
        return self.config

    @override
    def complete(self, config: ModelConfig) -> ModelConfig:
        if not isinstance(config, VisionConfig) or not config.dense:
            raise ValueError(
                f"{type(config).__name__} describes no network that gives each pixel a class: take "
                "mdeq-segmentation, mdeq-segmentation-unrolled or unet"
            )
        shape, classes = config.shape or self.shape, config.classes or self.classes
        config = replace(config, shape=shape, classes=classes)
        if (shape[0], classes) != (self.shape[0], self.classes):
            raise ValueError(
                f"the images of '{self.config.data}' have {self.shape[0]} channels and "
                f"{self.classes} classes; set model.shape and model.classes to that (they are "
                f"{tuple(shape)} and {classes})"
            )
        for name, heads in (
            ("auxiliary", bool(getattr(config, "auxiliary", False))),
            ("presence", "presence" in getattr(config, "heads", ())),
        ):
            check_heads(name, getattr(self.config, name), heads)
        return config

    @override
    def feed(self, batch_size: int, seed: int) -> Feed:
        config = self.config
        view = SceneView(crop=self.crop, scale=config.scale, flip=config.flip, color=config.color)
        return SceneFeed(
            self.images["train"], batch_size, seed, view=view, statistics=self.statistics
        )

    @override
    def batches(self, split: str, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        images = self.images[check_split(self, split)]
        mine, places = part.of(len(images)), list[int]()
        for place in range(mine.start, mine.stop):
            # Only images of one size can share a batch.
            if places and (
                len(places) == batch_size or images.sizes[place] != images.sizes[places[0]]
            ):
                yield self.batch_of(images, places)
                places = []
            places.append(place)
        if places:
            yield self.batch_of(images, places)

    @override
    def sample(self, split: str, count: int) -> Batch:
        images = self.images[check_split(self, split)]
        like = [k for k in range(min(count, len(images))) if images.sizes[k] == images.sizes[0]]
        return self.batch_of(images, like)

    def batch_of(self, images: MaskedImages, places: list[int]) -> Batch:
        """Return whole images, as the model is to see them, with their masks."""
        shown = torch.stack([images.image(k) for k in places])
        inputs = prepare(shown / 255, self.statistics)
        targets = torch.stack([images.mask(k) for k in places]).long()
        return Batch(inputs, targets if self.numbers is None else self.numbers[targets])

    @override
    def loss(self, model: Model, output: Any, targets: Tensor) -> Tensor:
        total = torch.zeros((), device=targets.device)
        parts = output if isinstance(output, dict) else {"masks": output}
        if "masks" in parts:
            logits = upsample(parts["masks"], targets.shape[1:])
            weights = None if self.weights is None else self.weights.to(logits)
            total = total + pixels.cross_entropy(
                logits, targets, weights=weights, hard=self.config.hard, least=self.config.hardest
            )
        if "presence" in parts:
            each = functional.binary_cross_entropy_with_logits(
                parts["presence"], self.present_classes(targets).to(parts["presence"])
            )
            # A mean over images and classes, as the other part is one over pixels.
            total = total + self.config.presence * self.units(targets) * each
        return total

    @override
    def units(self, targets: Tensor) -> int:
        return int((targets != VOID).sum())

    @override
    def sums(self, model: Model, output: Any, targets: Tensor) -> dict[str, Tensor]:
        parts = output if isinstance(output, dict) else {"masks": output}
        # Without masks, nothing is said of pixels: their figures are NaN.
        found = {"confusion": torch.zeros(self.classes, self.classes, dtype=torch.int64)}
        if "masks" in parts:
            answers = upsample(parts["masks"], targets.shape[1:]).argmax(1)
            found["confusion"] = pixels.confusion(answers, targets, self.classes)
        if "presence" in parts:
            found["presence"] = pixels.agreement(
                parts["presence"] > 0, self.present_classes(targets)
            )
        return found

    def present_classes(self, targets: Tensor) -> Tensor:
        """Return which classes masks have, (n, classes) bool."""
        numbers = torch.arange(self.classes, device=targets.device)
        return torch.stack([torch.isin(numbers, mask) for mask in targets])

    @override
    def reference(self, split: str) -> dict[str, float]:
        """Return what boosted trees on the colour and place of single pixels reach."""
        train, test = self.images["train"], self.images[check_split(self, split)]
        matrix = baselines.confusion(train, test, self.classes, balance=0.5)
        metrics = pixels.confusion_metrics(self.labels)
        return {m.name: m.figure({"confusion": matrix}) for m in metrics if m.figure is not None}

    @override
    def save(self, folder: Path) -> None:
        size = self.config.size
        resize = None if size is None else {"size": size, "share": 1.0, "fit": "stretch"}
        more = {"colours": self.colors, "values": self.values}
        self.write_images(folder, "segmentation", resize, **more)


def usual_size(sizes: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the height and width that images are brought to, by `size: auto`.

    Args:
        sizes: heights and widths of all images.

    Returns:
        About `AREA` pixels, or as many as images have, in multiples of 8; None where images have
        one size, and no more pixels.
    """
    if len(set(sizes)) == 1 and sizes[0][0] * sizes[0][1] <= AREA:
        return None
    ratio = statistics.median(height / width for height, width in sizes)
    area = min(AREA, statistics.median(height * width for height, width in sizes))
    high, wide = math.sqrt(area * ratio), math.sqrt(area / ratio)
    return max(8, 8 * round(high / 8)), max(8, 8 * round(wide / 8))
