"""Optical flow: where each pixel of an image is in the next one."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.metric import Sums
from equilibria.run.data import available, load
from equilibria.run.data.storage import DataError
from equilibria.run.models import Model, ModelConfig
from equilibria.run.tasks.base import Task, TaskConfig, check_split
from equilibria.run.tasks.feed import WHOLE, Batch, Feed, Part
from equilibria.zoo.flow.data import FlowPair, FlowSet, Pairs
from equilibria.zoo.flow.data.pairs import Size, stack_pairs
from equilibria.zoo.flow.model.configs import FlowConfig
from equilibria.zoo.flow.task import endpoints
from equilibria.zoo.flow.task.feed import Augmentation, FlowFeed, PairView, batch_of, check_flow
from equilibria.zoo.io.tasks import check_range, check_sizes, require_data, spread_places

# --- mixture --------------------------------------------------------------------------------------

# Pairs of several data sets, learned from together.


@dataclass(frozen=True, kw_only=True)
class Ingredient:
    """Pairs that are a part of a mixture.

    Attributes:
        pairs: what they are.
        times: how often each is there.
        sparse: whether their flow is known at single pixels.
    """

    pairs: Pairs
    times: int
    sparse: bool


class Mixture(Pairs):
    """Pairs of several data sets one after the other, each as often as is said.

    Args:
        parts: what is in it.
        places: of the pairs that are taken; None for all.
    """

    def __init__(self, parts: Sequence[Ingredient], places: Sequence[int] | None = None) -> None:
        self.parts = tuple(parts)
        self._ends = [*accumulate(len(part.pairs) * part.times for part in parts)]
        self._places = range(self._ends[-1]) if places is None else places

    @override
    def __len__(self) -> int:
        return len(self._places)

    def _at(self, place: int) -> tuple[Ingredient, int]:
        """The data set that a pair is of, and its place there."""
        place = self._places[place]
        number = bisect_right(self._ends, place)
        part = self.parts[number]
        return part, (place - (self._ends[number - 1] if number else 0)) % len(part.pairs)

    def is_sparse(self, place: int) -> bool:
        """Whether the flow of a pair is known at single pixels."""
        return self._at(place)[0].sparse

    @override
    def size(self, place: int) -> Size:
        part, own = self._at(place)
        return part.pairs.size(own)

    @override
    def pair(self, place: int) -> FlowPair:
        part, own = self._at(place)
        return part.pairs.pair(own)

    @override
    def batch(self, places: Tensor) -> FlowPair:
        return stack_pairs(self.pair(place) for place in places.tolist())

    @override
    def select(self, index: Tensor) -> Mixture:
        return Mixture(self.parts, [self._places[k] for k in index.tolist()])


# --- task -----------------------------------------------------------------------------------------


GENERATED = "layers"
"""The data set that is generated."""

_ONLY = {
    **dict.fromkeys(("size", "shift", "photographs", "data_seed"), (GENERATED,)),
    "render": ("sintel", "things"),
}
"""Fields that are for some data sets alone, and which."""

_SPARSE = ("kitti", "hd1k")
"""Data sets whose flow is known at single pixels."""

_REFERENCE = 8
"""Pairs that are read at once where no model looks at them."""


@dataclass(frozen=True, kw_only=True)
class FlowSource(TaskConfig):
    """Which pairs are learned from, and how many.

    Args:
        data: name of a data set (`layers`, which is generated, or one of those that the message
            about a wrong name lists), or path of a folder; also `--data FOLDER`.
        size: height and width of generated images; null for 96 x 128.
        shift: mean length of the translation of generated layers, in pixels; null for 7.
        photographs: what generated layers show: a folder of images, or the name of a data set of
            images of scenes, such as camvid; null for two that come with scikit-learn.
        data_seed: of all generated pairs.
        render: pass of `sintel` and `things` that is read, also where they are mixed in, "clean" or
            "final"; null for both.
        mixed: data sets to train on together with `data`, and how many times each is repeated in
            an epoch; `data` itself may be among them. Null for `data` alone.
        samples: training pairs to use, spread evenly over all; of generated ones, how many there
            are; null for all, or 8,000.
        test: pairs to evaluate on, spread evenly over all; of generated ones, how many there are;
            null for all, or 200.
    """

    data: str | None = GENERATED
    size: tuple[int, int] | None = None
    shift: float | None = None
    photographs: str | None = None
    data_seed: int = 0
    render: Literal["clean", "final"] | None = None
    mixed: dict[str, int] | None = None
    samples: int | None = None
    test: int | None = None


@dataclass(frozen=True, kw_only=True)
class OpticalFlow(Augmentation, FlowSource):
    """Where is each pixel of an image in the next one? Trained with the L1 loss of the flow.

    An unrolled network is trained on the flow after each refinement: the k-th before the last has
    the weight gamma^k.

    Its fields are those of `FlowSource` and `Augmentation`, and some of its own.

    papers: Teed and Deng 2020, eq. 7; Bai 2022 (thesis), ch. 7, whose eq. 7.8 has squares where the
    released code has L1.

    Args:
        sparse: the flow of training pairs is sparse: scaling moves each known pixel to the nearest
            one and does not interpolate. Null: true of `kitti` and `hd1k`.
        max_flow: pixels whose true flow is this long, in pixels, or longer are left out of the
            loss.
        gamma: decay of the weights of earlier refinements, of unrolled networks.
    """

    sparse: bool | None = None
    max_flow: float = 400.0
    gamma: float = 0.8

    def __post_init__(self) -> None:
        check_sizes(size=self.size, crop=self.crop)
        check_fields(self, "[1, inf)", "samples", "test")
        check_range("factor", scale=self.scale)
        check_range("side", erased=self.erased)
        check_fields(self, "[1, inf)", "stretch")
        check_fields(self, "[0, 1]", "flip", "flip_down", "asymmetric", "erase", "color")
        check_fields(self, "[0, 0.5]", "hue")
        check_fields(self, "(0, inf]", "max_flow")
        check_fields(self, "[0, 1]", "gamma")
        check_fields(self, "[0, inf)", "shift")
        for name, times in (self.mixed or {}).items():
            if times < 1:
                raise ValueError(f"mixed.{name} must be at least 1, a number of times; got {times}")
        for name, sets in _ONLY.items():
            if self.data not in sets and getattr(self, name) != _default(name):
                raise ValueError(
                    f"{name} is for data {' and '.join(sets)}, and data is {self.data}: leave it "
                    "out"
                )

    @override
    def load(self, data_dir: Path | None = None) -> FlowTask:
        return FlowTask(self, data_dir)

    @override
    def load_other(self, run: Path, data_dir: Path | None = None) -> FlowTask:
        """Read pairs to evaluate on, each at its own size: all, but of generated ones `test`."""
        test = self.test if self.data == GENERATED else None
        config = replace(self, crop=None, mixed=None, samples=None, test=test)
        return FlowTask(config, data_dir, other=True)

    @override
    def has_gallery(self, run: Path) -> bool:
        return True

    @override
    def at(self, data: str | Path) -> Self:
        kept = replace(self, **{name: _default(name) for name in _ONLY})
        found = super(OpticalFlow, kept).at(data)
        # What is for both data sets stays as it was asked for.
        asked = {name: getattr(self, name) for name, sets in _ONLY.items() if found.data in sets}
        return replace(found, **asked)

    def view(self, *, sparse: bool) -> PairView:
        """Return how training pairs are seen, whose flow is sparse or not."""
        shared = {field.name: getattr(self, field.name) for field in fields(Augmentation)}
        return PairView(**shared, sparse=sparse)

    def is_sparse(self, data: str | None) -> bool:
        """Return whether training pairs of a data set have their flow at single pixels."""
        return data in _SPARSE if self.sparse is None else self.sparse


def _default(name: str) -> Any:
    return OpticalFlow.__dataclass_fields__[name].default


class FlowTask(Task):
    """Pairs of images (n, 3, height, width) with flow (n, 2, height, width).

    Inputs are a tuple of the first and the second images, RGB from 0 to 255; targets are a tuple of
    the flow in pixels, to the right and downwards, and the pixels where it is known, bool.

    Args:
        config: what the recipe says.
        data_dir: folder to look for data sets in, before EQUILIBRIA_DATA.
        other: no run learns from them: all pairs of a folder without parts are test pairs, and
            sizes may differ.

    Raises:
        ValueError: there is no such data set, or the config does not fit it.
        DataError: the data are missing or damaged.
    """

    unit = "pixels"
    metrics = endpoints.METRICS
    baseline = "zero flow"
    gallery = "flow"

    def __init__(
        self, config: OpticalFlow, data_dir: Path | None = None, *, other: bool = False
    ) -> None:
        self.config, self.other = config, other
        whole = other and config.data not in available(FlowSet)
        found = _read(config, data_dir, {"whole": True} if whole else {})
        splits = {"train": found.train, "valid": found.valid, "test": found.test}
        self.pairs = {name: pairs for name, pairs in splits.items() if pairs is not None}
        for key, name in (("samples", "train"), ("test", "test")):
            count = getattr(config, key)
            if count is not None and name in self.pairs:
                pairs = self.pairs[name]
                places = spread_places(key, count, len(pairs), "pairs", name)
                self.pairs[name] = pairs.select(places)
        self.checksum, self.source = found.checksum, found.title
        self.mixture = self._mix(data_dir) if config.mixed else None
        self.splits = tuple(self.pairs)
        self.eval_split = "valid" if "valid" in self.splits else "test"

    def _mix(self, data_dir: Path | None) -> Mixture:
        """The training pairs of all data sets; their checksum and title become the task's."""
        config, own = self.config, self._training
        mixed = {str(config.data): 1, **(config.mixed or {})}
        parts, checksums, titles = list[Ingredient](), list[str](), list[str]()
        for name, times in mixed.items():
            pairs = own
            if name != config.data:
                options: dict[str, Any] = {}
                if config.render is not None and name in _ONLY["render"]:
                    options["render"] = config.render
                found = load(name, data_dir, kind=FlowSet, **options)
                if (pairs := found.train) is None:
                    raise ValueError(f"{found.title} has no pairs to learn from")
                titles.append(found.title)
                checksums.append(found.checksum)
            parts.append(Ingredient(pairs=pairs, times=times, sparse=config.is_sparse(name)))
        if titles:
            digest = hashlib.sha256("\n".join([self.checksum, *checksums]).encode())
            self.checksum = f"sha256:{digest.hexdigest()}"
            self.source = f"{self.source}, with {' and '.join(titles)}"
        return Mixture(parts)

    @property
    def _training(self) -> Pairs:
        """The pairs of the data set itself that are learned from.

        Raises:
            ValueError: there are none.
        """
        if "train" not in self.pairs:
            raise ValueError(f"{self.source} has no pairs to learn from")
        return self.pairs["train"]

    @override
    def complete(self, config: ModelConfig) -> ModelConfig:
        if not isinstance(config, FlowConfig):
            raise ValueError(
                f"{type(config).__name__} describes no network for optical flow: take deq-raft, "
                "deq-gma, raft or gma"
            )
        for size in self._sizes():
            # Numbers on no device: what is asked is whether the network takes images of this size.
            images = torch.empty(1, 3, *size, device="meta")
            config.check((images, images))
        return config

    def _sizes(self) -> list[tuple[int, int]]:
        """Heights and widths: of training images as they are shown, of all others their own.

        Raises:
            ValueError: those of training images differ.
        """
        if self.other or "train" not in self.pairs:
            return _sizes_of(self.pairs["test"])
        judged = _sizes_of(*(pairs for split, pairs in self.pairs.items() if split != "train"))
        if self.config.crop is not None:
            return [self.config.crop, *judged]
        sizes = _sizes_of(self.mixture or self._training)
        if len(sizes) > 1:
            (high, wide), (other_high, other_wide) = sizes[0], sizes[-1]
            raise ValueError(
                f"the images of {self.source} differ in size, from {high} x {wide} to "
                f"{other_high} x {other_wide} pixels (height x width): show parts of one size with "
                "task.crop"
            )
        return [*sizes, *judged]

    @override
    def feed(self, batch_size: int, seed: int) -> Feed:
        config, mixture = self.config, self.mixture
        views = {sparse: config.view(sparse=sparse) for sparse in (False, True)}
        own = config.is_sparse(config.data)
        return FlowFeed(
            self._training if mixture is None else mixture,
            batch_size,
            seed,
            view=lambda place: views[mixture.is_sparse(place) if mixture else own],
        )

    @override
    def batches(self, split: str, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        pairs = self.pairs[check_split(self, split)]
        mine, places = part.of(len(pairs)), list[int]()
        for place in range(mine.start, mine.stop):
            # Only images of one size can share a batch.
            if places and (len(places) == batch_size or pairs.size(place) != pairs.size(places[0])):
                yield self.batch(split, places)
                places = []
            places.append(place)
        if places:
            yield self.batch(split, places)

    def batch(self, split: str, places: Sequence[int]) -> Batch:
        """Return whole pairs of a split with their flow; all must have one size."""
        index = torch.tensor(places)
        return batch_of(check_flow(self.pairs[check_split(self, split)].batch(index), index))

    @override
    def sample(self, split: str, count: int) -> Batch:
        pairs = self.pairs[check_split(self, split)]
        few = range(min(count, len(pairs)))
        return self.batch(split, [k for k in few if pairs.size(k) == pairs.size(0)])

    def is_learned(self, targets: tuple[Tensor, Tensor]) -> Tensor:
        """Return which pixels are learned from, bool: those of a known flow below `max_flow`."""
        flow, valid = targets
        return valid & (flow.norm(dim=1) < self.config.max_flow)

    @override
    def loss(self, model: Model, output: Tensor, targets: tuple[Tensor, Tensor]) -> Tensor:
        return endpoints.absolute(output, targets[0], self.is_learned(targets))

    @override
    def extra_loss(self, losses: Tensor) -> Tensor:
        before = torch.arange(len(losses), 0, -1, device=losses.device)
        return (self.config.gamma**before * losses).sum()

    @override
    def units(self, targets: tuple[Tensor, Tensor]) -> int:
        return int(self.is_learned(targets).sum())

    @override
    def sums(
        self, model: Model, output: Tensor, targets: tuple[Tensor, Tensor]
    ) -> dict[str, Tensor]:
        return endpoints.sums(output, *targets)

    @override
    def figures(self, sums: Sums, split: str | None = None) -> dict[str, float]:
        """Return the mean loss and the figures of all metrics, by name.

        Raises:
            DataError: a split was evaluated, and the flow is known at none of its pixels.
        """
        if split is not None and not int(sums["pixels"]):
            raise DataError(
                f"no pixel of the {split} split of {self.source} is valid: there is no flow to "
                "compare with"
            )
        return super().figures(sums, split)

    @override
    def reference(self, split: str) -> dict[str, float]:
        """Return the errors of a flow that is 0 everywhere."""
        total: dict[str, Tensor] = {}
        for batch in self.batches(split, _REFERENCE):
            flow, valid = batch.targets
            for name, value in endpoints.sums(torch.zeros_like(flow), flow, valid).items():
                total[name] = total.get(name, torch.zeros_like(value)) + value
        known = ((metric.name, metric.figure) for metric in self.metrics)
        return {name: figure(total) for name, figure in known if figure is not None}


def _read(config: OpticalFlow, data_dir: Path | None, options: dict[str, Any]) -> FlowSet:
    """The data set that the recipe names."""
    data = require_data(config.data, "there are no pairs", "name a folder with --data FOLDER")
    if config.render is not None:
        options = {"render": config.render}
    if data == GENERATED:
        names = {name: name for name in ("size", "shift", "photographs", "test")}
        names |= {"count": "samples", "seed": "data_seed"}
        options = {name: getattr(config, field) for name, field in names.items()}
        options = {name: value for name, value in options.items() if value is not None}
    return load(data, data_dir, kind=FlowSet, **options)


def _sizes_of(*several: Pairs) -> list[tuple[int, int]]:
    return sorted({pairs.size(k) for pairs in several for k in range(len(pairs))})
