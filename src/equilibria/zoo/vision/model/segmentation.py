"""Multiscale equilibrium networks that tell what each pixel shows, or the whole image, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from equilibria.run.models.base import Model, Prediction
from equilibria.solve import Solution
from equilibria.zoo.vision.model.mdeq import (
    MDEQ,
    BatchNorm2d,
    ClassificationHead,
    MultiscaleConfig,
    UnrolledConfig,
    check_bottlenecks,
)

# --- dense head -----------------------------------------------------------------------------------

# What reads the class of each pixel from the equilibrium of an MDEQ.


Resolutions = Literal["all", "highest"]
"""The resolutions of the state that a pixel's class is read from."""


def upsample(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Return maps (batch, ..., h, w) at another height and width, interpolated linearly."""
    if tuple(maps.shape[-2:]) == tuple(size):
        return maps
    return functional.interpolate(maps, size=tuple(size), mode="bilinear", align_corners=False)


class DenseHead(nn.Module):
    """Logits of each place: K2 * relu(BN(K1 * u)), with 1x1 convolutions.

    u is the highest resolution of the state alone, or all of them, each interpolated linearly to
    the highest and concatenated, as in the released models; K1 keeps its channels.

    Args:
        channels: of each resolution of the state, the highest first.
        classes: number of logits.
        resolutions: "all" or the "highest".

    papers: Bai et al. 2020, sec. 3 and appendix A.
    """

    def __init__(self, channels: Sequence[int], classes: int, resolutions: Resolutions) -> None:
        super().__init__()
        self.resolutions: Resolutions = resolutions
        width = sum(channels) if resolutions == "all" else channels[0]
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 1), BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, classes, 1)
        )

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Return logits (batch, classes, height, width) at the highest resolution."""
        size = states[0].shape[2:]
        read = states if self.resolutions == "all" else states[:1]
        return self.layers(torch.cat([upsample(z, size) for z in read], 1))


class AuxiliaryMaps(nn.ModuleList):
    """Logits of each place from each resolution by itself: a 1x1 convolution.

    Their losses reach each resolution directly, in training alone.

    papers: Bai 2022 (thesis), sec. 3.1 ("each resolution inducing its own loss").
    """

    def __init__(self, channels: Sequence[int], classes: int) -> None:
        super().__init__(nn.Conv2d(width, classes, 1) for width in channels)

    def forward(self, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return logits (batch, classes, height, width) of each of the states, at its own size."""
        return tuple(head(z) for head, z in zip(self, states, strict=True))


# --- segmentation ---------------------------------------------------------------------------------


Head = Literal["masks", "presence"]
"""What is read from the state: the class of each pixel, or which classes the image shows."""


@dataclass(frozen=True, kw_only=True)
class SegmentationCellConfig(MultiscaleConfig):
    """What stem, cell and heads of a segmentation network are.

    With the head "masks" alone, the output is logits (batch, classes, height, width) at the highest
    resolution of the state, 1 / 2^halvings of the image's. With others it is a dictionary:
    "masks" as before, and "presence", logits (batch, classes) of whether the image shows a class.
    All heads read one and the same equilibrium.

    Args:
        heads: "masks", "presence", or both.
        resolutions: what a pixel's class is read from: "all" resolutions, interpolated to the
            highest and concatenated, as in the released models; or the "highest" alone, as in the
            thesis.
        head_channels: inside the bottleneck at each resolution of the head "presence"; None for a
            quarter of `channels`.
        final: channels that this head pools and classifies.

    papers: Bai et al. 2020, sec. 3; Bai 2022 (thesis), sec. 3.1.
    """

    dense = True
    auxiliary_class = AuxiliaryMaps
    heads: tuple[Head, ...] = ("masks",)
    resolutions: Resolutions = "all"
    head_channels: tuple[int, ...] | None = None
    final: int = 64

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        known = ("masks", "presence")
        if not self.heads or len(set(self.heads)) < len(self.heads) or set(self.heads) - {*known}:
            raise ValueError(f"heads must be masks, presence or both; got {self.heads}")
        if self.resolutions not in ("all", "highest"):
            raise ValueError(f"resolutions must be 'all' or 'highest'; got {self.resolutions!r}")
        check_bottlenecks(self.channels, self.inner, self.final)

    @property
    def inner(self) -> tuple[int, ...]:
        """Channels inside the bottlenecks of the head "presence"."""
        return self.head_channels or tuple(max(1, width // 4) for width in self.channels)

    @override
    def head(self) -> nn.Module:
        _, classes = self.require_shape()
        made: dict[str, nn.Module] = {}
        if "masks" in self.heads:
            made["masks"] = DenseHead(self.channels, classes, self.resolutions)
        if "presence" in self.heads:
            made["presence"] = ClassificationHead(
                self.channels, self.inner, final=self.final, classes=classes
            )
        return made["masks"] if self.heads == ("masks",) else Heads(made)


@dataclass(frozen=True, kw_only=True)
class MDEQSegmentationConfig(SegmentationCellConfig):
    """The architecture of a multiscale equilibrium network for segmentation.

    Its fields are those of `SegmentationCellConfig`: shape, classes, `channels` of each resolution
    and what stem, cell and heads are made of. Images may have any size from `min_size` up.
    """


@dataclass(frozen=True, kw_only=True)
class MDEQSegmentationUnrolledConfig(SegmentationCellConfig, UnrolledConfig):
    """The architecture of a segmentation network that applies an MDEQ's cell a number of times.

    Its fields are those of `SegmentationCellConfig` and `UnrolledConfig`.
    """


class Heads(nn.ModuleDict):
    """Several heads on one equilibrium, each with its name in the output."""

    def forward(self, states: Sequence[Tensor]) -> dict[str, Tensor]:
        """Return what each head reads from the states, the highest resolution first."""
        return {name: head(states) for name, head in self.items()}


# --- inference ------------------------------------------------------------------------------------


def masks_of(output: Any) -> Tensor:
    """Return the logits of pixels, from the output of a network with one head or several."""
    return output["masks"] if isinstance(output, dict) else output


class Tiled(Model):
    """Logits of images of any size, from windows that overlap.

    Windows begin at multiples of `stride`, and two neighbours share a strip of at least `overlap`
    pixels. Of this strip the outer quarter of each window is not used: what is told there is told
    without seeing what lies beyond. From there the weight of a window rises to that of the other,
    in the middle of the strip. A network whose receptive field reaches no further than a quarter of
    the overlap tells of each pixel what it tells of it in the whole image.

    Args:
        model: the network, in evaluation mode.
        size: height and width of a window.
        overlap: pixels that two neighbouring windows share, at least; below both sides of `size`.
        stride: that the places of windows are multiples of, for a network that halves its input;
            None for the model's `config.min_size`, or 1.

    Raises:
        ValueError: the overlap is not below the size of a window less the stride.
    """

    def __init__(
        self, model: Model, *, size: tuple[int, int], overlap: int, stride: int | None = None
    ) -> None:
        super().__init__()
        self.model, self.size, self.overlap = model, size, overlap
        self.stride = stride or _smallest(model)
        most = min(size) - self.stride
        if not 0 <= overlap <= most:
            raise ValueError(
                f"windows of {size[0]} x {size[1]} pixels cannot overlap by {overlap} in steps of "
                f"{self.stride}: take windows of at least {max(overlap, 0) + self.stride} x "
                f"{max(overlap, 0) + self.stride}"
                + (f", or an overlap between 0 and {most}" if most >= 0 else "")
            )

    @override
    def forward(self, x: Tensor, *, carry: Any = None) -> Prediction:
        """Return logits (batch, classes, height, width), and the solutions of all windows.

        Args:
            x: (batch, channels, height, width); smaller images than a window are one window.
            carry: None.
        """
        self.refuse_carry(carry)
        height, width = x.shape[2:]
        rows, columns = self.spans(height, self.size[0]), self.spans(width, self.size[1])
        down, across = self.weights(rows, height), self.weights(columns, width)
        total: Tensor | None = None
        solutions: list[Solution] = []
        for (top, bottom), line in zip(rows, down, strict=True):
            for (left, right), column in zip(columns, across, strict=True):
                part = self.model(x[:, :, top:bottom, left:right].contiguous())
                logits = upsample(masks_of(part.output), (bottom - top, right - left))
                if total is None:
                    total = logits.new_zeros(*logits.shape[:2], height, width)
                weight = (line[:, None] * column).to(logits)
                total[:, :, top:bottom, left:right] += weight * logits
                solutions += part.solutions
        assert total is not None
        return Prediction(total, tuple(solutions))

    def spans(self, length: int, window: int) -> list[tuple[int, int]]:
        """Return where windows begin and end along a side of an image.

        All begin at a multiple of the stride. The last ends with the image, and is larger than the
        others by less than a stride.
        """
        if length <= window:
            return [(0, length)]
        step = (window - self.overlap) // self.stride * self.stride
        last = (length - window) // self.stride * self.stride
        return [*((begin, begin + window) for begin in range(0, last, step)), (last, length)]

    def weights(self, spans: Sequence[tuple[int, int]], length: int) -> list[Tensor]:
        """Return the weight of each pixel of each window along a side; together they are 1."""
        found: list[Tensor] = []
        total = torch.zeros(length, dtype=torch.float64)
        quarter = max(self.overlap / 4, 0.5)
        for begin, end in spans:
            inside = torch.arange(end - begin, dtype=torch.float64) + 0.5
            # The edge of the image is no edge of what can be seen.
            before = inside if begin else torch.full_like(inside, torch.inf)
            after = end - begin - inside if end < length else torch.full_like(inside, torch.inf)
            nearest = torch.minimum(before, after)
            weight = ((nearest - quarter) / quarter).clamp(1e-9, 1.0)
            total[begin:end] += weight
            found.append(weight)
        return [w / total[b:e] for (b, e), w in zip(spans, found, strict=True)]


class MultiScale(Model):
    """The mean of the class probabilities of images at several scales, mirrored ones too.

    At each scale the image is interpolated, the network's logits are brought back to its own size,
    and their softmax is added up; the output is the logarithm of the mean. Scales are taken in
    ascending order, and the equilibrium of one, interpolated, starts the solve of the next.

    Args:
        model: the network, in evaluation mode.
        scales: of height and width.
        mirrored: whether each scale is also taken mirrored left to right.
        warm: whether a solve starts at the coarser scale's equilibrium; only of an `MDEQ`, whose
            state can be interpolated.

    Raises:
        ValueError: there is no scale, or one that is not positive.
    """

    def __init__(
        self,
        model: Model,
        *,
        scales: Sequence[float] = (1.0,),
        mirrored: bool = False,
        warm: bool = True,
    ) -> None:
        super().__init__()
        if not scales or min(scales) <= 0:
            raise ValueError(f"scales must be positive numbers, one or more; got {tuple(scales)}")
        self.model, self.scales, self.mirrored = model, tuple(sorted(scales)), mirrored
        self.warm = warm and isinstance(model, MDEQ)

    @override
    def forward(self, x: Tensor, *, carry: Any = None) -> Prediction:
        """Return log-probabilities (batch, classes, height, width), and all solutions."""
        self.refuse_carry(carry)
        size = x.shape[2:]
        total: Tensor | None = None
        solutions: list[Solution] = []
        coarser: Sequence[Tensor] | None = None
        smallest = _smallest(self.model)
        for scale in self.scales:
            target = [max(smallest, round(scale * side)) for side in size]
            image = x
            if target != list(size):
                image = functional.interpolate(
                    x, size=target, mode="bilinear", align_corners=False, antialias=scale < 1
                )
            found = self._solve(image, coarser)
            solutions += found.solutions
            mirror = None
            if self.warm:
                coarser = found.solution.value
            if self.mirrored:
                start = None if coarser is None else [z.flip(-1) for z in coarser]
                mirror = self._solve(image.flip(-1), start)
                solutions += mirror.solutions
            for each, flipped in ((found, False), (mirror, True)):
                if each is not None:
                    logits = upsample(masks_of(each.output).float(), size).softmax(1)
                    logits = logits.flip(-1) if flipped else logits
                    total = logits if total is None else total + logits
        assert total is not None
        runs = len(self.scales) * (1 + self.mirrored)
        return Prediction((total / runs).clamp_min(1e-12).log(), tuple(solutions))

    def _solve(self, image: Tensor, start: Sequence[Tensor] | None) -> Prediction:
        if start is None or not self.warm:
            return self.model(image)
        assert isinstance(self.model, MDEQ)
        sizes = self.model.config.sizes(*image.shape[2:])
        z0 = tuple(upsample(z, size) for z, size in zip(start, sizes, strict=True))
        return self.model(image, z0=z0)


def _smallest(model: Model) -> int:
    """The smallest height and width of an image that a model can take, as its config has it."""
    seen = model.model if isinstance(model, Tiled) else model
    return int(getattr(getattr(seen, "config", None), "min_size", 1))
