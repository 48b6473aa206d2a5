"""Classification of images."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.run.data import Dataset, Split, available, load
from equilibria.run.data.dataset import Samples
from equilibria.run.data.storage import DataError
from equilibria.run.models import ClassifierConfig, Model, ModelConfig
from equilibria.run.tasks.base import LabeledTask
from equilibria.run.tasks.feed import Batch, Feed
from equilibria.run.tasks.normalization import READ, Normalized, PixelStatistics
from equilibria.zoo.io import headers, selection
from equilibria.zoo.io.decode import resize
from equilibria.zoo.io.image_files import MEMORY
from equilibria.zoo.io.tasks import check_channels, complete_config, require_data
from equilibria.zoo.vision.data.images import ImageFiles, ImageFolder
from equilibria.zoo.vision.data.shards import dataset as shards
from equilibria.zoo.vision.data.shards.dataset import ImageShards
from equilibria.zoo.vision.data.shards.images import ShardImages
from equilibria.zoo.vision.model.config import VisionConfig
from equilibria.zoo.vision.task.batches import ImageFeed, crop_images, flip_images, shift_images
from equilibria.zoo.vision.task.pixels import confusion
from equilibria.zoo.vision.task.seen import (
    IMAGES,
    ImageFormat,
    ImageTask,
    ImageTaskConfig,
    check_heads,
)
from equilibria.zoo.vision.task.streaming import StreamedImages

LISTED = 100
"""Classes up to which it is counted which is taken for which."""


@dataclass(frozen=True, kw_only=True)
class ImageClassification(ImageTaskConfig):
    """Which of several classes does an image show? Trained with cross-entropy.

    Args:
        data: name of a data set (cifar10, cifar100, digits, imagenet or mnist), or path of a folder
            of images that has a folder for each class, or of the indexes of shards that are
            streamed; also `--data FOLDER`.
        size: pixels of each side that images are brought to, in a folder the middle square of each;
            null for images as they are, which must all have one size.
        channels: 3 or 1, to have the images of a folder converted to RGB or grey; null for images
            that are all RGB or all grey.
        samples: training images to learn from, as many of each class; null for all.
        valid: training images that are set aside, and evaluated after each epoch in place of the
            test images; null for none.
        flip: mirror training images left to right at random.
        shift: pixels by which training images are moved at random, at most, along each side.
        crop: minimum share of a training image's area that is shown, chosen at random; null for
            whole images. In a folder, images are then decoded each time they are shown, and those
            to evaluate on are shown without an eighth of their shorter side where `size` is given.
        normalize: give each channel mean 0 and deviation 1 over the images that are learned from;
            where they are decoded each time they are shown, over 2,000 of them, spread evenly.
        lanes: shards that a batch is read from side by side, a divisor of batch_size: best one for
            each process, or a multiple. null: as many as divide batch_size, 8 at most, and
            no more than there are shards.
        label_smoothing: share of a target's weight that is spread over all classes, in [0, 1).
        auxiliary: weight of the mean loss of what a model reads from single resolutions, for a
            model that has such heads.
    """

    data: str | None = "digits"
    size: int | None = None
    channels: int | None = None
    samples: int | None = None
    valid: int | None = None
    flip: bool = False
    shift: int = 0
    crop: float | None = None
    normalize: bool = False
    lanes: int | None = None
    label_smoothing: float = 0.0
    auxiliary: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "[0, 1)", "label_smoothing")
        check_fields(self, "[0, inf)", "shift")
        check_fields(self, "(0, 1]", "crop")
        check_fields(self, "[0, inf)", "auxiliary")
        check_channels(self.channels)
        check_fields(self, "[1, inf)", "size", "samples", "valid", "lanes")

    @override
    def load(self, data_dir: Path | None = None) -> ClassificationTask:
        return ClassificationTask(self, data_dir)

    @override
    def load_other(self, run: Path, data_dir: Path | None = None) -> ClassificationTask:
        """Read images and bring them to the run's size and channels, with its numbers of classes.

        All images of a folder that has no parts are the test images.

        Raises:
            DataError: the run has not all of their classes, or images of another shape.
        """
        seen = ImageFormat.read(run / IMAGES)
        channels, height, width = seen.shape
        config = replace(
            self,
            size=self.size or (height if height == width else None),
            channels=channels
            if channels in (1, 3) and self.data not in available(Dataset)
            else None,
            crop=self.crop if self.size else None,
            samples=None,
            valid=None,
            lanes=None,
        )
        return ClassificationTask(config, data_dir, seen)


class ClassificationTask(ImageTask, LabeledTask):
    """Images (n, channels, height, width) with labels (n,).

    Args:
        config: what the recipe says.
        data_dir: folder to look for data sets in, before EQUILIBRIA_DATA.
        seen: how a run has seen its images, for others to evaluate it on; None for its own.
    """

    def __init__(
        self, config: ImageClassification, data_dir: Path | None, seen: ImageFormat | None = None
    ) -> None:
        self.config = config
        found = find_source(config, data_dir, seen)
        self.area = isinstance(found, Dataset)
        samples = choose_samples(config, found)
        train = samples.get("train")
        self.files = train if isinstance(train, ImageFiles) else None
        self.shards = train if isinstance(train, ShardImages) else None
        self.streamed = isinstance(found, ImageShards)
        self.statistics = None if seen is None else seen.statistics
        if config.normalize and seen is None:
            self.statistics = statistics(found, samples["train"])
        if seen is not None:
            samples = seen.renumber(samples, found.labels, found.title)
        if self.statistics is not None:
            samples = {name: Normalized(s, self.statistics) for name, s in samples.items()}
        super().__init__(samples, found.checksum)
        self.label_smoothing = config.label_smoothing
        self.source, self.labels = found.title, found.labels if seen is None else seen.labels
        self.classes = len(self.labels)
        size = config.size
        self.shape = found.shape if size is None else (found.shape[0], size, size)
        if seen is not None and self.shape != seen.shape:
            raise DataError(
                f"the images of {found.title} have shape {self.shape} (channels, height, width), "
                f"and the run's have {seen.shape}"
            )
        self.smallest = None if isinstance(found, Dataset) else found.smallest
        self.auxiliary = config.auxiliary
        self.gallery = "classification" if self.shape[0] in (1, 3) else ""

    @override
    def complete(self, config: ModelConfig) -> ModelConfig:
        if not isinstance(config, ClassifierConfig):
            raise ValueError(f"{type(config).__name__} describes no classifier of images")
        if isinstance(config, VisionConfig) and config.dense:
            raise ValueError(
                f"{type(config).__name__} describes a network that gives each pixel a class: it is "
                "for the task image_segmentation"
            )
        self._check_size(config)
        facts = {"shape": self.shape, "classes": self.classes}
        config = complete_config(config, facts, f"'{self.config.data}'")
        check_heads("auxiliary", self.auxiliary, bool(getattr(config, "auxiliary", False)))
        return config

    def _check_size(self, config: ClassifierConfig) -> None:
        """Raise ValueError if images are smaller than the model can take."""
        needed = int(getattr(config, "min_size", 1))
        _, height, width = self.shape
        if min(height, width) >= needed:
            return
        what = f"the images of '{self.config.data}'"
        if self.config.size is not None:
            what = f"images that task.size makes {height} x {width} pixels of"
        elif self.smallest is not None:
            what = self.smallest
        remedy = getattr(config, "remedy", "take larger images")
        raise ValueError(
            f"{what}: too small for this model, which needs {needed} x {needed} pixels; {remedy}, "
            "or have images brought to a larger size with task.size"
        )

    @override
    def feed(self, batch_size: int, seed: int) -> Feed:
        shown: dict[str, Any] = {"crop": self.config.crop, "statistics": self.statistics}
        if self.shards is not None:
            lanes = self.config.lanes
            return StreamedImages(self.shards, batch_size, seed, lanes=lanes, **shown)
        if self.files is not None:
            return ImageFeed(self.files, batch_size, seed, **shown)
        return super().feed(batch_size, seed)

    def some(self, split: str, count: int) -> Tensor:
        """Return the places of up to `count` images of a split to look at.

        They are drawn at random, the same ones each time; of shards they are the first, so that
        few shards are read.
        """
        length = len(self.samples[split])
        if self.streamed:
            return torch.arange(min(count, length))
        order = torch.randperm(length, generator=torch.Generator().manual_seed(0))
        return order[:count]

    @override
    def augment(self, batch: Batch) -> Batch:
        inputs = batch.inputs
        if self.config.crop is not None and self.files is None and self.shards is None:
            inputs = crop_images(inputs, self.config.crop)
        if self.config.shift:
            inputs = shift_images(inputs, self.config.shift)
        return batch._replace(inputs=flip_images(inputs) if self.config.flip else inputs)

    @override
    def sums(self, model: Model, output: Tensor, targets: Tensor) -> dict[str, Tensor]:
        found = super().sums(model, output, targets)
        if self.classes <= LISTED:
            found["confusion"] = confusion(output.argmax(1), targets, self.classes)
        return found

    @override
    def save(self, folder: Path) -> None:
        resize = None
        if (size := self.config.size) is not None:
            share = SHOWN if self.config.crop is not None else 1.0
            way = "area" if self.area else "linear"
            resize = {"size": [size, size], "share": share, "fit": "square", "filter": way}
        self.write_images(folder, "classification", resize)


# --- sources --------------------------------------------------------------------------------------

# Where the images of a classification task come from, and which of them it takes.


SHOWN = 7 / 8
"""The part of an image's shorter side that is judged where training shows random parts: the usual
224 pixels of 256 on ImageNet."""

Images = Dataset | ImageFolder | ImageShards
"""In memory, in files, or in shards."""


def find_source(
    config: ImageClassification, data_dir: Path | None, seen: ImageFormat | None
) -> Images:
    """Read a named data set, or find the images of a folder, to be seen as a run has seen its own.

    Raises:
        ValueError: there is no such data set.
        DataError: it is missing or damaged; the message names the file.
    """
    how = "name a folder with --data FOLDER, with one subfolder of images per class"
    data = require_data(config.data, "there are no images", how)
    if data not in available(Dataset):
        share = SHOWN if config.crop is not None else 1.0
        options = {"size": config.size, "channels": config.channels, "share": share}
        if data not in available(ImageFolder):
            area = seen is not None and seen.resize is not None and seen.resize.filter == "area"
            options.update(whole=seen is not None, area=area)
            if shards.is_sharded(data):
                return shards.load(data, **options)
            if shards.is_index(path := Path(data).expanduser()):
                raise DataError(
                    f"{path} is one index of shards: name the folder of all of them, {path.parent}"
                )
        return load(data, data_dir, kind=Dataset | ImageFolder, **options)
    if config.channels is not None:
        raise ValueError(
            f"channels is {config.channels}, and '{data}' has the channels that it has: "
            "it is for a folder of images; set it to null"
        )
    return load(data, data_dir)


def statistics(images: Images, train: Samples) -> PixelStatistics:
    """Return those by which images are normalised: of shards, those that the index holds."""
    if isinstance(images, ImageShards):
        return PixelStatistics.check(images.moments.mean, images.moments.deviation)
    return PixelStatistics.of(train, READ if isinstance(train, ImageFiles) else None)


def _take_shards(config: ImageClassification, images: ImageShards) -> dict[str, Samples]:
    """Return the images of each split, which stay in their shards.

    Raises:
        ValueError: a part of them is asked for.
    """
    for name in ("samples", "valid"):
        if (value := getattr(config, name)) is not None:
            raise ValueError(
                f"{name} is {value}, and shards are streamed as they are: set task.{name} to null, "
                "and give other shards to equilibria shards"
            )
    return cast(dict[str, Samples], images.splits)


def choose_samples(config: ImageClassification, images: Images) -> dict[str, Samples]:
    """Return the images of each split: "test", and perhaps "train" and "valid".

    Images in files are decoded here, once, where they fit into memory and are shown as a whole.

    Raises:
        ValueError: there are not so many images.
        DataError: one of not too many images is damaged; the message names the file.
    """
    if isinstance(images, ImageShards):
        return _take_shards(config, images)
    if config.lanes is not None:
        raise ValueError(
            f"lanes is {config.lanes}, and the images of '{config.data}' are not in shards: set "
            "task.lanes to null"
        )
    taken: dict[str, Samples] = {"train": images.train} if len(images.train) else {}
    if config.valid is not None and images.valid is not None:
        raise ValueError(
            f"valid is {config.valid}, and '{config.data}' has images of its own to validate on: "
            "set task.valid to null"
        )
    if config.valid is not None or config.samples is not None:
        targets = images.train.targets
        learned, aside = selection.stratify(targets, images.labels, config.valid, config.samples)
        taken["train"] = images.train.select(learned)
        if aside is not None:
            taken["valid"] = images.train.select(aside)
    if images.valid is not None:
        taken["valid"] = images.valid
    taken["test"] = images.test
    small = sum(map(len, taken.values())) <= headers.SMALL
    for name, each in taken.items():
        if isinstance(each, ImageFiles):
            if each.bytes <= MEMORY and not (name == "train" and config.crop is not None):
                taken[name] = each.decode_all()
            elif small:
                each.check()
        elif isinstance(each, Split) and config.size is not None:
            taken[name] = Split(resize(each.inputs, config.size), each.targets)
    return taken
