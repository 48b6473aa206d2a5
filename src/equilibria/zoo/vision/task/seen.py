"""How the images of a run were seen: which class has which number, and what was done to pixels."""

import dataclasses
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NotRequired, Self, TypedDict, cast

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.metric import Sums
from equilibria.run.data import available
from equilibria.run.data.dataset import Dataset, Samples
from equilibria.run.data.storage import DataError
from equilibria.run.tasks.base import Task, TaskConfig
from equilibria.run.tasks.normalization import PixelStatistics
from equilibria.words import list_some
from equilibria.zoo.io.tasks import read_facts, write_facts
from equilibria.zoo.vision.data.shards.images import ShardImages

IMAGES = "images.json"
"""The file of a run folder that tells what classes are called and how images were seen."""

Auto = Literal["auto"]
"""Stands for a value that follows from the data."""

_LISTED = 5
"""Classes that a message names."""


@dataclass(frozen=True, kw_only=True)
class Resize:
    """How an image is brought to a size: its middle part of that ratio, or the whole of it.

    Attributes:
        size: height and width.
        share: of the middle part that is shown.
        fit: "square" for the middle part, "stretch" for the whole image.
        filter: "linear" interpolation, or "area" for means over areas where it shrinks.
    """

    size: tuple[int, int]
    share: float = 1.0
    fit: str = "square"
    filter: str = "linear"

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> Self:
        """Return what images.json holds."""
        return cls(
            size=tuple(content["size"]),
            share=content["share"],
            fit=content["fit"],
            filter=content.get("filter", "linear"),
        )


class _Normal(TypedDict):
    mean: list[float]
    deviation: list[float]


class _Resize(TypedDict):
    size: tuple[int, int]
    share: float
    fit: Literal["square", "stretch"]
    filter: NotRequired[Literal["linear", "area"]]


class _ImagesFile(TypedDict):
    """images.json; earlier versions did not write all of it."""

    labels: list[str]
    shape: list[int]
    normalise: _Normal | None
    kind: NotRequired[str]
    resize: NotRequired[_Resize | None]
    colours: NotRequired[list[tuple[int, int, int]]]
    values: NotRequired[list[int]]


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """What images.json of a run folder holds, for other images to be seen in the same way."""

    labels: tuple[str, ...]
    """Names of the classes, in the order of their numbers."""
    shape: tuple[int, ...]
    """Channels, height and width of an image."""
    statistics: PixelStatistics | None
    """Those by which images were normalised; None where they were not."""
    kind: str = "classification"
    """What the model tells: the class of an image, or "segmentation", of each of its pixels."""
    resize: Resize | None = None
    """How images were brought to one size; None where they were taken as they are."""
    colors: tuple[tuple[int, int, int], ...] = ()
    """Red, green and blue of each class, in pictures of masks."""
    values: tuple[int, ...] = ()
    """The value of each class in the files of masks; empty for 0, 1, ..."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read images.json.

        Raises:
            DataError: it is missing or damaged.
        """
        if not path.exists():
            raise DataError(
                f"{path} is missing: without it nobody knows which class of other images is which"
            )
        with read_facts(path, _ImagesFile) as content:
            normal, labels = content["normalise"], content["labels"]
            if normal is not None:
                normal = PixelStatistics(tuple(normal["mean"]), tuple(normal["deviation"]))
            resize, kind = content.get("resize"), content.get("kind", "classification")
            colors = tuple((r, g, b) for r, g, b in content.get("colours", ()))
            if not all(0 <= each < 256 for color in colors for each in color):
                raise ValueError("colours must be whole numbers from 0 to 255")
            if kind == "segmentation" and len(colors) != len(labels):
                raise ValueError(f"{len(colors)} colours of {len(labels)} classes")
            values = tuple(content.get("values", ()))
            if values and not len({*values} & {*range(255)}) == len(values) == len(labels):
                raise ValueError(f"values must be {len(labels)} numbers from 0 to 254, all unlike")
            return cls(
                labels=tuple(labels),
                shape=tuple(content["shape"]),
                statistics=normal,
                kind=kind,
                resize=None if resize is None else Resize.of(resize),
                colors=colors,
                values=values,
            )

    def numbers(self, labels: Sequence[str], source: str) -> list[int]:
        """Return the numbers that classes have in the run; warn where it has others too.

        Args:
            labels: names of the classes, in the order of their own numbers.
            source: what the data are called.

        Raises:
            DataError: the run has no class of one of these names.
        """
        unknown = [label for label in labels if label not in self.labels]
        missing = [label for label in self.labels if label not in labels]
        if unknown:
            raise DataError(
                f"{source} has classes that the run does not have: {list_some(unknown, _LISTED)}. "
                f"The run's classes are matched by name, and {source} lacks "
                f"{list_some(missing, _LISTED) or 'none'} of them: "
                "rename its classes, or remove those that the run does not have"
            )
        if missing:
            warnings.warn(
                f"{source} has {len(labels)} of the run's {len(self.labels)} classes, not "
                f"{list_some(missing, _LISTED)}",
                stacklevel=2,
            )
        return [self.labels.index(label) for label in labels]

    def renumber(
        self, samples: dict[str, Samples], labels: Sequence[str], source: str
    ) -> dict[str, Samples]:
        """Return samples with the numbers that their classes have in the run; see `numbers`.

        Args:
            samples: by the name of the split.
            labels: names of their classes, in the order of their own numbers.
            source: what they are called.
        """
        numbers = self.numbers(labels, source)
        return {name: _renumber(each, numbers) for name, each in samples.items()}


@dataclass(frozen=True, kw_only=True)
class ImageTaskConfig(TaskConfig):
    """What a recipe writes under `task`, for a task on images: what a run folder tells of them."""

    @override
    def has_gallery(self, run: Path) -> bool:
        return (run / IMAGES).is_file()

    @override
    def read_classes(self, run: Path) -> dict[str, Any] | None:
        if not (run / IMAGES).exists():
            return None
        seen = ImageFormat.read(run / IMAGES)
        return {"labels": seen.labels, "colours": seen.colors}

    @override
    def read_inputs(
        self, run: Path, data: str, *, batches: int, size: int, seed: int
    ) -> Iterator[Tensor] | None:
        """Return batches of images without labels, seen as a run saw its own.

        None stands for images with labels, which are not among the inputs: a named data set, or a
        folder of images and masks.
        """
        from equilibria.zoo.io.naming import pictures
        from equilibria.zoo.vision import predict  # which sees images as this module says

        named = data in available(Dataset) or (Path(data).expanduser() / "masks").exists()
        if named or not (run / IMAGES).is_file():
            return None
        images = pictures([data], without=run / "predictions")
        return predict.iterate_batches(images, ImageFormat.read(run / IMAGES), batches, size, seed)


class ImageTask(Task):
    """What tasks on images have in common: how often classes are confused, and images.json.

    Attributes:
        labels: names of the classes, in the order of their numbers.
        shape: channels, height and width of an image.
        statistics: those by which images are normalised; None where they are not.
    """

    labels: tuple[str, ...]
    shape: tuple[int, ...]
    statistics: PixelStatistics | None

    @override
    def record(self, sums: Sums) -> dict[str, Any]:
        """Return how many images, or pixels, of class i were taken for class j, by rows."""
        return {"confusion": sums["confusion"].tolist()} if "confusion" in sums else {}

    def write_images(
        self, folder: Path, kind: str, resize: Mapping[str, Any] | None, **more: Any
    ) -> None:
        """Write images.json: names of the classes, and what was done to pixels in [0, 1].

        Args:
            folder: of the run.
            kind: see `ImageFormat`.
            resize: as `Resize.of` reads it.
            more: further keys.
        """
        normal = None if self.statistics is None else dataclasses.asdict(self.statistics)
        content = {
            "kind": kind,
            "source": self.source,
            "labels": self.labels,
            "shape": self.shape,
            "normalise": normal,
            "resize": resize,
            **more,
        }
        write_facts(folder / IMAGES, content)


def check_heads(name: str, weight: float, has_heads: bool) -> None:
    """Raise ValueError for heads that no loss would train, or a loss without heads.

    Args:
        name: of the loss's weight in the task.
        weight: of the loss.
        has_heads: whether the model has heads for it.
    """
    if has_heads and not weight:
        raise ValueError(
            f"the model has a head for task.{name}, and nothing would train it: give its loss a "
            f"weight with task.{name}, or take the head away"
        )
    if weight and not has_heads:
        raise ValueError(
            f"task.{name} is {weight:g}, and the model has no head for such a loss: set it to 0, "
            "or take a model that has one"
        )


def _renumber(samples: Samples, numbers: list[int]) -> Samples:
    if isinstance(samples, ShardImages):  # whose classes are known when they are read
        return cast(Any, samples.renumber(numbers))
    return replace(cast(Any, samples), targets=torch.tensor(numbers)[samples.targets])
