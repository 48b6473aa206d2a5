"""Multiscale equilibrium networks that tell what each pixel shows, or the whole image, or both."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn
from typing_extensions import override

from equilibria.zoo.vision.model.dense_head import AuxiliaryMaps, DenseHead, Resolutions
from equilibria.zoo.vision.model.head import ClassificationHead, check_bottlenecks
from equilibria.zoo.vision.model.mdeq import MDEQ, UnrolledConfig
from equilibria.zoo.vision.model.multiscale import MultiscaleConfig

__all__ = [
    "Heads",
    "MDEQSegmentationConfig",
    "MDEQSegmentationUnrolledConfig",
    "SegmentationCellConfig",
]

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
        _, classes = self.required()
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
        _, classes = self.required()
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
