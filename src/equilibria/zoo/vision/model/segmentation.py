"""Multiscale equilibrium networks that tell what each pixel shows, or the whole image, or both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

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
            nn.Conv2d(width, width, 1),
            BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, classes, 1),
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
    @override
    def dense(self) -> bool:
        return True

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

    @override
    def auxiliary_heads(self) -> AuxiliaryMaps | None:
        _, classes = self.require_shape()
        return AuxiliaryMaps(self.channels, classes) if self.auxiliary else None


@dataclass(frozen=True, kw_only=True)
class MDEQSegmentationConfig(SegmentationCellConfig):
    """The architecture of a multiscale equilibrium network for segmentation.

    Its fields are those of `SegmentationCellConfig`: shape, classes, `channels` of each resolution
    and what stem, cell and heads are made of. Images may have any size from `min_size` up.
    """

    @override
    def build(self, **layer: Any) -> MDEQ:
        return MDEQ(self, **layer)


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
