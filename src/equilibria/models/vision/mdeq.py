"""The multiscale deep equilibrium network, MDEQ, and the same cell unrolled."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.models.base import EquilibriumModel, ExplicitConfig, Model, Prediction
from equilibria.models.unrolled import frozen_layer
from equilibria.models.vision.block import Norm
from equilibria.models.vision.cell import MultiscaleCell
from equilibria.models.vision.config import VisionConfig, check_positive
from equilibria.models.vision.head import AuxiliaryHeads, ClassificationHead
from equilibria.models.vision.stem import Stem
from equilibria.nn import DEQ

__all__ = ["MDEQ", "MDEQCellConfig", "MDEQConfig", "MDEQUnrolled", "MDEQUnrolledConfig"]


@dataclass(frozen=True, kw_only=True)
class MDEQCellConfig(VisionConfig):
    """What stem, cell and head of an MDEQ are.

    Args:
        channels: of each resolution of the state, the highest first; a single one makes the
            single-stream DEQ.
        head_channels: inside the head's bottleneck at each resolution.
        final: channels that the head pools and classifies.
        expansion: width inside the cell's blocks, in units of `channels`.
        groups: of each GroupNorm; they must divide all of `channels`.
        dropout: share dropped in each block, with one mask per forward.
        halvings: how often the stem halves height and width before the highest resolution.
        projection: whether the stem ends in a 1x1 convolution, as that of all released models but
            the smallest.
        weight_norm: kernels of the blocks, and those after the fusion, are length times direction.
        norm: GroupNorm in the cell, or "none", where each place is to depend on no more than its
            surroundings.
        affine: whether the GroupNorm after the fusion has gains and shifts to learn, as in the
            released models for ImageNet.
        initial: standard deviation of the kernels of stem and cell at the start; None for torch's
            own.
        auxiliary: a linear classifier at each resolution too, for losses of its own in training;
            their weight is `task.auxiliary`.
        channels_last: keep images, states and all that the solver remembers in memory with channels
            last; None for where that is faster, on a GPU (on a CPU it takes up to 1.6 times as
            long where channels are few).
    """

    channels: tuple[int, ...] = (24, 24)
    head_channels: tuple[int, ...] = (8, 16)
    final: int = 200
    expansion: int = 5
    groups: int = 8
    dropout: float = 0.0
    halvings: int = 0
    projection: bool = True
    weight_norm: bool = True
    norm: Norm = "group"
    affine: bool = False
    initial: float | None = 0.01
    auxiliary: bool = False
    channels_last: bool | None = None

    @override
    def __post_init__(self) -> None:
        check_positive(
            channels=self.channels,
            head_channels=self.head_channels,
            final=(self.final,),
            expansion=(self.expansion,),
            groups=(self.groups,),
        )
        if len(self.channels) != len(self.head_channels):
            raise ValueError(
                f"channels and head_channels have a number for each resolution; got "
                f"{len(self.channels)} and {len(self.head_channels)}: {self.channels} and "
                f"{self.head_channels}"
            )
        if self.norm == "group" and any(width % self.groups for width in self.channels):
            raise ValueError(
                f"groups must divide the channels of each resolution; got {self.groups} groups of "
                f"{self.channels} channels"
            )
        if self.halvings < 0:
            raise ValueError(f"halvings must not be negative; got {self.halvings}")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout is a share and must be in [0, 1); got {self.dropout}")
        if self.initial is not None and not self.initial > 0.0:
            raise ValueError(
                f"initial must be positive, or None for torch's own; got {self.initial}"
            )
        super().__post_init__()

    @property
    @override
    def min_size(self) -> int:
        return 2 ** (self.halvings + len(self.channels) - 1)

    @property
    @override
    def remedy(self) -> str:
        return (
            f"take larger images, fewer resolutions (channels: {self.channels}) or fewer halvings "
            f"({self.halvings})"
        )

    def stem(self) -> Stem:
        """Return a new stem."""
        (inputs, _, _), _ = self.required()
        return Stem(
            inputs,
            self.channels[0],
            halvings=self.halvings,
            projection=self.projection,
            initial=self.initial,
        )

    def cell(self) -> MultiscaleCell:
        """Return a new cell."""
        return MultiscaleCell(
            self.channels,
            expansion=self.expansion,
            groups=self.groups,
            dropout=self.dropout,
            norm=self.norm,
            affine=self.affine,
            initial=self.initial,
            weight_normalised=self.weight_norm,
        )

    def head(self) -> ClassificationHead:
        """Return a new head."""
        _, classes = self.required()
        return ClassificationHead(
            self.channels, self.head_channels, final=self.final, classes=classes
        )

    def auxiliary_heads(self) -> AuxiliaryHeads | None:
        """Return new classifiers of single resolutions, or None where there are to be none."""
        _, classes = self.required()
        return AuxiliaryHeads(self.channels, classes) if self.auxiliary else None


@dataclass(frozen=True, kw_only=True)
class MDEQConfig(MDEQCellConfig):
    """The architecture of a multiscale deep equilibrium network, or of a single-stream one.

    Its fields are those of `MDEQCellConfig`: shape, classes, `channels` of each resolution and what
    stem, cell and head are made of.
    """

    @override
    def build(self, **layer: Any) -> "MDEQ":
        return MDEQ(self, **layer)


@dataclass(frozen=True, kw_only=True)
class MDEQUnrolledConfig(MDEQCellConfig, ExplicitConfig):
    """The architecture of a network that applies an MDEQ's cell a fixed number of times.

    Its fields are those of `MDEQCellConfig`, `layers` and `checkpoint`.

    Args:
        layers: applications of the cell.
        checkpoint: keep the state alone of each layer and evaluate the layer again in backward.
    """

    layers: int = 10
    checkpoint: bool = False

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(layers=(self.layers,))

    @override
    def network(self) -> "MDEQUnrolled":
        return MDEQUnrolled(self)


class MDEQ(EquilibriumModel):
    """Features at several resolutions that are driven to one joint equilibrium, z* = f(z*; x).

    The state is a tuple of tensors, one a resolution, solved for together and never concatenated:
    norms, inner products and combinations are sums over them. They lie in memory as the stem's
    features do, in the solver as in the cell. Classes are read from all of them; `readout` is one
    way to use `deq(*inject(x)).value`, and another head may read any of the resolutions.

    papers: Bai et al. 2020; Bai 2022 (thesis), ch. 3.
    """

    def __init__(self, config: MDEQConfig, **layer: Any) -> None:
        super().__init__()
        self.config = config
        self.stem = config.stem()
        cell = config.cell()
        self.deq = DEQ(cell, init=cell.start, **layer)
        self.head = config.head()
        self.auxiliary = config.auxiliary_heads()

    @override
    def inject(self, x: Tensor) -> tuple[Tensor]:
        """Return the stem's features of images (batch, channels, height, width)."""
        return (_features(self.stem, x, self.config),)

    @override
    def readout(self, z: Sequence[Tensor]) -> Tensor:
        """Return logits (batch, classes) of the state, the highest resolution first."""
        return self.head(z)

    @override
    def read_parts(self, z: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return logits (batch, classes) of each resolution, where there are auxiliary heads."""
        return () if self.auxiliary is None else self.auxiliary(z)


class MDEQUnrolled(Model):
    """An MDEQ's cell applied so many times from zeros, differentiated through all of them.

    It is that many steps of plain iteration of `MDEQ`, with the same weights and dropout masks in
    all; the keys of its state dict are those of the equilibrium network with `cell` in place of
    `deq.cell`.

    papers: Bai et al. 2020, table 2 ("unrolled 5-layer MDEQ").
    """

    def __init__(self, config: MDEQUnrolledConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = config.stem()
        self.cell = config.cell()
        self.head = config.head()
        self.auxiliary = config.auxiliary_heads()

    @override
    def forward(self, x: Tensor, *, carry: Any = None) -> Prediction:
        self.refuse_carry(carry)
        features = _features(self.stem, x, self.config)
        z = self.cell.start(features)
        layer = frozen_layer(self.cell, (features,), self.config.checkpoint)
        for _ in range(self.config.layers):
            z = layer(z)
        parts = self.auxiliary(z) if self.training and self.auxiliary is not None else ()
        return Prediction(self.head(z), (), auxiliary=parts)


def _features(stem: Stem, x: Tensor, config: MDEQCellConfig) -> Tensor:
    """What the stem makes of images; its layout in memory is that of all that follows."""
    config.check(x)
    last = x.is_cuda if config.channels_last is None else config.channels_last
    layout = torch.channels_last if last else torch.contiguous_format
    return stem(x.contiguous(memory_format=layout)).contiguous(memory_format=layout)
