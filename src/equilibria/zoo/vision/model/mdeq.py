"""The multiscale deep equilibrium network, MDEQ, and its cell unrolled; both as classifiers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn import DEQ
from equilibria.run.models.base import EquilibriumModel, ExplicitConfig, Model, Prediction
from equilibria.run.models.unrolled import frozen_layer
from equilibria.zoo.vision.model.head import AuxiliaryHeads, ClassificationHead, check_bottlenecks
from equilibria.zoo.vision.model.multiscale import MultiscaleConfig
from equilibria.zoo.vision.model.stem import Stem

__all__ = [
    "MDEQ",
    "MDEQCellConfig",
    "MDEQConfig",
    "MDEQUnrolled",
    "MDEQUnrolledConfig",
    "UnrolledConfig",
]


@dataclass(frozen=True, kw_only=True)
class MDEQCellConfig(MultiscaleConfig):
    """What stem, cell and head of a classifier of images are.

    Args:
        head_channels: inside the head's bottleneck at each resolution.
        final: channels that the head pools and classifies.
    """

    head_channels: tuple[int, ...] = (8, 16)
    final: int = 200

    @override
    def __post_init__(self) -> None:
        check_bottlenecks(self.channels, self.head_channels, self.final)
        super().__post_init__()

    @override
    def head(self) -> ClassificationHead:
        _, classes = self.required()
        return ClassificationHead(
            self.channels, self.head_channels, final=self.final, classes=classes
        )

    @override
    def auxiliary_heads(self) -> AuxiliaryHeads | None:
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
class UnrolledConfig(MultiscaleConfig, ExplicitConfig):
    """The architecture of a network that applies an MDEQ's cell a fixed number of times.

    Args:
        layers: applications of the cell.
        checkpoint: keep the state alone of each layer and evaluate the layer again in backward.
    """

    layers: int = 10
    checkpoint: bool = False

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_fields(self, "(0, inf)", "layers")

    @override
    def network(self) -> "MDEQUnrolled":
        return MDEQUnrolled(self)


@dataclass(frozen=True, kw_only=True)
class MDEQUnrolledConfig(MDEQCellConfig, UnrolledConfig):
    """The architecture of a classifier that applies an MDEQ's cell a fixed number of times.

    Its fields are those of `MDEQCellConfig` and `UnrolledConfig`.
    """


class MDEQ(EquilibriumModel):
    """Features at several resolutions that are driven to one joint equilibrium, z* = f(z*; x).

    The state is a tuple of tensors, one a resolution, solved for together and never concatenated:
    norms, inner products and combinations are sums over them. They lie in memory as the stem's
    features do, in the solver as in the cell. What is read from them is the head's matter: the
    classes of an image, of each of its pixels, or both at once.

    papers: Bai et al. 2020; Bai 2022 (thesis), ch. 3.
    """

    def __init__(self, config: MultiscaleConfig, **layer: Any) -> None:
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
        """Return what the head reads from the state, the highest resolution first."""
        return self.head(z)

    @override
    def read_parts(self, z: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return what is read from each resolution, where there are auxiliary heads."""
        return () if self.auxiliary is None else self.auxiliary(z)


class MDEQUnrolled(Model):
    """An MDEQ's cell applied so many times from zeros, differentiated through all of them.

    It is that many steps of plain iteration of `MDEQ`, with the same weights and dropout masks in
    all; the keys of its state dict are those of the equilibrium network with `cell` in place of
    `deq.cell`.

    papers: Bai et al. 2020, table 2 ("unrolled 5-layer MDEQ").
    """

    def __init__(self, config: UnrolledConfig) -> None:
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


def _features(stem: Stem, x: Tensor, config: MultiscaleConfig) -> Tensor:
    """What the stem makes of images; its layout in memory is that of all that follows."""
    config.check(x)
    last = x.is_cuda if config.channels_last is None else config.channels_last
    layout = torch.channels_last if last else torch.contiguous_format
    return stem(x.contiguous(memory_format=layout)).contiguous(memory_format=layout)
