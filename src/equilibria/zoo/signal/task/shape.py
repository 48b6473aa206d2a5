"""Shapes: what is inside is learned at points that are drawn anew in each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from equilibria.run.models import Model
from equilibria.run.tasks.base import check_split
from equilibria.run.tasks.feed import WHOLE, Batch, Feed, Part
from equilibria.zoo.io.prefetch import Ahead
from equilibria.zoo.signal.data import Shape
from equilibria.zoo.signal.data.signal import checksum_of
from equilibria.zoo.signal.task.fitting import CUBE_IOU, SURFACE_IOU, SignalTask, inside

_TEST, _TRAIN, _SAMPLE = range(3)
"""First number of the seeds of points to evaluate at, to learn from, and to look at."""


class ShapeTask(SignalTask):
    """The inside of a closed mesh, learned from points in the cube [-1, 1]^3.

    Inputs are points (points, 3); targets are a dictionary: `inside` and `near`, bool (points,),
    whether each is inside, and whether it was drawn near the surface. The network answers with the
    logit of being inside.

    Args:
        shape: what is learned.
        title: what tables call it.
        near: share of the points of a step that are drawn near the surface.
        noise: standard deviation of their distances.
        test: points of each kind to evaluate at.
        seed: of all points.

    papers: Mescheder et al. 2019; Bai 2022 (thesis), sec. 8.3.5.
    """

    metrics = (SURFACE_IOU, CUBE_IOU)
    refused = (
        "points of a shape are drawn anew in each step, so that no state is used twice: set reuse "
        "to false"
    )

    def __init__(
        self, shape: Shape, title: str, *, near: float, noise: float, test: int, seed: int
    ) -> None:
        self.signal = shape
        self.source, self.near, self.noise, self.seed = title, near, noise, seed
        self.test = self.draw_points((_TEST, seed), test, test)
        vertices, faces = shape.mesh
        content = (torch.from_numpy(vertices), torch.from_numpy(faces), *self.test[1].values())
        self.checksum = checksum_of((shape.name, shape.field, self.test[0], *content))

    def draw_points(
        self, seed: Sequence[int], near: int, even: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw points, those near the surface first, and tell which are inside.

        Args:
            seed: the same one gives the same points.
            near: points near the surface.
            even: points of the whole cube.
        """
        parts = []
        if near:
            parts.append(self.signal.near_surface(near, (*seed, 0), self.noise))
        if even:
            parts.append(self.signal.uniform(even, (*seed, 1)))
        points = torch.cat([each.points for each in parts])
        targets = {
            "inside": torch.cat([each.inside for each in parts]),
            "near": torch.arange(near + even) < near,
        }
        return points, targets

    @override
    def whole(self) -> int:
        raise ValueError(
            "batch_size is all, and the points of a shape are drawn anew in each step: set it to "
            "how many, such as 10000"
        )

    @override
    def feed(self, batch_size: int, seed: int) -> Feed:
        return _Fresh(self, batch_size, seed)

    @override
    def batches(self, split: str, batch_size: int, part: Part = WHOLE) -> Iterator[Batch]:
        if check_split(self, split) == "train":
            inputs, targets = self.sample("train", len(self.test[0]))[:2]
        else:
            inputs, targets = self.test
        mine = part.of(len(inputs))
        for start in range(mine.start, mine.stop, batch_size):
            rows = slice(start, min(start + batch_size, mine.stop))
            yield Batch(inputs[rows], {name: each[rows] for name, each in targets.items()})

    @override
    def sample(self, split: str, count: int) -> Batch:
        near = round(self.near * count)
        if check_split(self, split) == "train":
            return Batch(*self.draw_points((_SAMPLE, self.seed), near, count - near))
        inputs, targets = self.test
        places = torch.arange(count) * len(inputs) // count if count < len(inputs) else slice(None)
        return Batch(inputs[places], {name: each[places] for name, each in targets.items()})

    @override
    def units(self, targets: Mapping[str, Tensor]) -> int:
        return len(targets["inside"])

    @override
    def loss(self, model: Model, output: Tensor, targets: Mapping[str, Tensor]) -> Tensor:
        target = targets["inside"].to(output.dtype)
        return functional.binary_cross_entropy_with_logits(output[:, 0], target, reduction="sum")

    @override
    def sums(
        self, model: Model, output: Tensor, targets: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        return inside(output, targets["inside"], targets["near"])


class _Fresh(Feed):
    """Points drawn for each step, by its number; a pass is a step."""

    steps = 1

    def __init__(self, task: ShapeTask, batch_size: int, seed: int) -> None:
        self.task, self.batch_size, self.seed = task, batch_size, seed
        self._ahead = Ahead(self._make)

    @override
    def batch(self, step: int, part: Part = WHOLE) -> Batch:
        return self._ahead.batch(step, part)

    def _make(self, step: int, part: Part) -> Batch:
        near = round(self.task.near * self.batch_size)
        seed = (_TRAIN, self.task.seed, self.seed, step)
        inputs, targets = self.task.draw_points(seed, near, self.batch_size - near)
        if part.count > 1:  # both kinds of points in each share
            places = torch.arange(part.index, self.batch_size, part.count)
            return Batch(inputs[places], {name: each[places] for name, each in targets.items()})
        return Batch(inputs, targets)
