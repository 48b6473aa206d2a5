"""The multiscale deep equilibrium network, MDEQ, and its cell unrolled; both as classifiers."""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from equilibria.checks import check_fields, check_within
from equilibria.nn import DEQ, VariationalDropout, weight_norm
from equilibria.run.models.base import (
    EquilibriumModel,
    ExplicitConfig,
    Model,
    Prediction,
    freeze_layer,
)
from equilibria.zoo.vision.model.config import VisionConfig

# --- batch norm -----------------------------------------------------------------------------------

# Batch normalisation that can be evaluated after a few steps.


class BatchNorm2d(nn.BatchNorm2d):
    """torch's, evaluated with the mean and variance of the batches alone.

    After k batches the running statistics of torch still hold a share (1 - momentum)^k of the 0
    and 1 that they begin with: 11 % after 20 batches, which twenty layers turn into the accuracy of
    guessing. In evaluation that share is taken out, as Adam does with its moments (Kingma and Ba
    2015, sec. 3). Training, what is saved, and evaluation after some two hundred batches are those
    of torch.
    """

    @override
    def forward(self, input: Tensor) -> Tensor:
        found = None if self.training else self.statistics()
        if found is None:
            return super().forward(input)
        return functional.batch_norm(input, *found, self.weight, self.bias, eps=self.eps)

    def prepare_export(self) -> None:
        """Keep the mean and variance of the batches alone, for torch's own evaluation."""
        if (found := self.statistics()) is not None:
            self.running_mean, self.running_var = found
            self.num_batches_tracked = None

    def statistics(self) -> tuple[Tensor, Tensor] | None:
        """Return mean and variance of the batches alone; None where torch's own are to be used."""
        mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
        if mean is None or var is None or count is None or self.momentum is None:
            return None
        start = torch.where(count > 0, (1.0 - self.momentum) ** count, 0.0)
        return mean / (1.0 - start), (var - start).clamp_min(0.0) / (1.0 - start)


# --- block ----------------------------------------------------------------------------------------

# The residual block that an MDEQ has at each resolution.


Norm = Literal["group", "none"]
"""What follows each convolution of an MDEQ's cell."""


def make_norm(norm: Norm, groups: int, channels: int, affine: bool = True) -> nn.Module:
    """Return GroupNorm, or the identity where the cell is to have none."""
    return nn.GroupNorm(groups, channels, affine=affine) if norm == "group" else nn.Identity()


class ResidualBlock(nn.Module):
    """z+ = GN(relu(z^ + z)) with z~ = GN(K1 * z) and z^ = GN(K2 * relu(z~) + x).

    The convolutions are 3x3; the inner one is `expansion` times as wide as the state, which is
    where a model gets its capacity. Dropout with one mask per forward follows the second.

    Args:
        channels: of the state, (batch, channels, height, width).
        expansion: width inside the block, in units of `channels`.
        groups: of each GroupNorm.
        dropout: share of the second convolution's output that is dropped.
        norm: GroupNorm, or none.

    papers: Bai et al. 2020, sec. 3; Bai 2022 (thesis), eq. 3.1.
    """

    def __init__(
        self, channels: int, *, expansion: int, groups: int, dropout: float, norm: Norm
    ) -> None:
        super().__init__()
        inner = expansion * channels
        self.conv1 = nn.Conv2d(channels, inner, 3, padding=1, bias=False)
        self.norm1 = make_norm(norm, groups, inner)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(inner, channels, 3, padding=1, bias=False)
        self.dropout = VariationalDropout(dropout)
        self.norm2 = make_norm(norm, groups, channels)
        self.relu2 = nn.ReLU()
        self.norm3 = make_norm(norm, groups, channels)

    def forward(self, z: Tensor, x: Tensor | None = None) -> Tensor:
        """Return z+ of the state `z`, with an injection `x` of its shape where there is one."""
        inside = self.dropout(self.conv2(self.relu1(self.norm1(self.conv1(z)))))
        if x is not None:
            inside = inside + x
        return self.norm3(self.relu2(self.norm2(inside) + z))


# --- fusion ---------------------------------------------------------------------------------------

# The fusion step of an MDEQ: each resolution gets what the others have become.


class Fusion(nn.Module):
    """y_j = GN(K_j * relu(z_j + sum_{i != j} R_ij(z_i))) over all resolutions, K_j 1x1.

    R_ij goes down by a 3x3 convolution of stride 2 for each level, each followed by GroupNorm and
    all but the last by ReLU; it goes up by a 1x1 convolution, GroupNorm and interpolation to the
    nearest place. Sizes need be no multiples of one another.

    Args:
        channels: of each resolution, the highest first.
        groups: of the GroupNorms in R; that after K has half as many.
        norm: GroupNorm, or none.
        affine: whether GroupNorm after K has gains and shifts to learn.

    papers: Bai et al. 2020, sec. 3 and appendix A; Bai 2022 (thesis), sec. 3.1.
    """

    def __init__(
        self, channels: Sequence[int], *, groups: int, norm: Norm, affine: bool = False
    ) -> None:
        super().__init__()
        levels = range(len(channels))
        self.resample = nn.ModuleDict(
            {
                f"{i}to{j}": (_down if j > i else _up)(channels, i, j, groups, norm)
                for j in levels
                for i in levels
                if i != j
            }
        )
        self.after = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(),
                nn.Conv2d(width, width, 1, bias=False),
                make_norm(norm, max(1, groups // 2), width, affine=affine),
            )
            for width in channels
        )

    def forward(self, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return all resolutions, each with what the others send it.

        Args:
            states: (batch, channels, height, width) of each, the highest resolution first.
        """
        fused: list[Tensor] = []
        for j, after in enumerate(self.after):
            total, size = states[j], states[j].shape[2:]
            for i, state in enumerate(states):
                if i == j:
                    continue
                sent = self.resample[f"{i}to{j}"](state)
                total = total + (sent if i < j else functional.interpolate(sent, size=size))
            fused.append(after(total))
        return tuple(fused)


def _down(channels: Sequence[int], i: int, j: int, groups: int, norm: Norm) -> nn.Module:
    """R_ij from the resolution i to a lower one, j > i."""
    steps: list[nn.Module] = []
    for level in range(i + 1, j + 1):
        width = channels[j] if level == j else channels[i]
        steps += [
            nn.Conv2d(channels[i], width, 3, stride=2, padding=1, bias=False),
            make_norm(norm, groups, width),
            *([] if level == j else [nn.ReLU()]),
        ]
    return nn.Sequential(*steps)


def _up(channels: Sequence[int], i: int, j: int, groups: int, norm: Norm) -> nn.Module:
    """R_ij from the resolution i to a higher one, j < i, before the interpolation."""
    return nn.Sequential(
        nn.Conv2d(channels[i], channels[j], 1, bias=False), make_norm(norm, groups, channels[j])
    )


# --- cell -----------------------------------------------------------------------------------------

# The one layer of an MDEQ: a residual block at each resolution, then fusion.


class MultiscaleCell(nn.Module):
    """f(z; x) = fuse(block_1(z_1; x), block_2(z_2), ..., block_n(z_n)).

    The state is a tuple of tensors, one a resolution, the highest first; each is half as high and
    wide as the one before, rounded up. The input is injected at the highest alone: the others learn
    of it by the fusion. With one resolution there is nothing to fuse: f is the block, and its fixed
    point the single-stream DEQ.

    Args:
        config: what the blocks and the fusion are, and how their kernels are drawn.

    papers: Bai et al. 2020, sec. 3; Bai 2022 (thesis), sec. 3.1.
    """

    def __init__(self, config: MultiscaleConfig) -> None:
        super().__init__()
        self.channels = tuple(config.channels)
        groups, norm = config.groups, config.norm
        kind: dict[str, Any] = {"groups": groups, "norm": norm, "dropout": config.dropout}
        self.blocks = nn.ModuleList(
            ResidualBlock(width, expansion=config.expansion, **kind) for width in self.channels
        )
        self.fusion = None
        if len(self.channels) > 1:
            self.fusion = Fusion(self.channels, groups=groups, norm=norm, affine=config.affine)
        _draw_kernels(self, config.initial)
        if config.weight_norm:
            for module in (self.blocks, *(() if self.fusion is None else (self.fusion.after,))):
                weight_norm(module)

    def start(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return zeros for each resolution of the injection `x` (batch, channels, height, width).

        They lie in memory as `x` does: with channels last, that stays so through the solve.
        """
        last = x.is_contiguous(memory_format=torch.channels_last)
        order = torch.channels_last if last else torch.contiguous_format
        states: list[Tensor] = []
        height, width = x.shape[2:]
        for channels in self.channels:
            zeros = x.new_zeros(x.shape[0], channels, height, width)
            states.append(zeros.contiguous(memory_format=order))
            height, width = (height + 1) // 2, (width + 1) // 2
        return tuple(states)

    def forward(self, z: Sequence[Tensor], x: Tensor) -> tuple[Tensor, ...]:
        """Evaluate f once; `x` has the shape of the first of `z`."""
        after = [
            block(state, x if level == 0 else None)
            for level, (block, state) in enumerate(zip(self.blocks, z, strict=True))
        ]
        return tuple(after) if self.fusion is None else self.fusion(after)


# --- stem -----------------------------------------------------------------------------------------

# From pixels to what an MDEQ's cell is given.


class Stem(nn.Sequential):
    """Two 3x3 convolutions and, where asked for, a 1x1 one, each with BatchNorm and ReLU.

    Height and width are halved `halvings` times, rounded up, by a stride of 2 in the first
    convolutions; beyond two, a convolution is added for each. The stem stands before the solve: its
    BatchNorm does not trouble the fixed point.

    Args:
        config: how often height and width are halved, and whether the 1x1 convolution follows.

    papers: Bai et al. 2020, appendix A.
    """

    def __init__(self, config: MultiscaleConfig) -> None:
        (inputs, _, _), _ = config.require_shape()
        channels, halvings = config.channels[0], config.halvings
        layers: list[nn.Module] = []
        for i in range(max(2, halvings)):
            stride = 2 if i < halvings else 1
            layers += _conv_layers(inputs if i == 0 else channels, channels, 3, stride)
        if config.projection:
            layers += _conv_layers(channels, channels, 1)
        super().__init__(*layers)
        _draw_kernels(self, config.initial)


def _conv_layers(
    inputs: int, outputs: int, kernel: int, stride: int = 1, *, bias: bool = False
) -> list[nn.Module]:
    """A convolution, BatchNorm and ReLU."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)
    return [conv, BatchNorm2d(outputs), nn.ReLU()]


def _draw_kernels(module: nn.Module, deviation: float | None) -> None:
    """Draw the kernels of all convolutions anew, normal with a deviation; None leaves torch's."""
    for each in module.modules():
        if deviation is not None and isinstance(each, nn.Conv2d):
            nn.init.normal_(each.weight, std=deviation)


# --- head -----------------------------------------------------------------------------------------

# What reads classes from the equilibrium of an MDEQ.


EXPANSION = 4
"""Channels that a bottleneck gives out, in units of those inside it."""


class Bottleneck(nn.Module):
    """relu(S(z) + K3 * relu(K2 * relu(K1 * z))): 1x1, 3x3 and 1x1 convolutions with BatchNorm.

    S is a 1x1 convolution with BatchNorm. The other norms have nothing to learn.

    Args:
        inputs: channels of z.
        inner: channels inside; `EXPANSION` times as many come out.

    papers: He et al. 2016; Bai et al. 2020, appendix A.
    """

    def __init__(self, inputs: int, inner: int) -> None:
        super().__init__()
        outputs = EXPANSION * inner
        self.body = nn.Sequential(
            nn.Conv2d(inputs, inner, 1, bias=False),
            BatchNorm2d(inner, affine=False),
            nn.ReLU(),
            nn.Conv2d(inner, inner, 3, padding=1, bias=False),
            BatchNorm2d(inner, affine=False),
            nn.ReLU(),
            nn.Conv2d(inner, outputs, 1, bias=False),
            BatchNorm2d(outputs, affine=False),
        )
        self.shortcut = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, bias=False), BatchNorm2d(outputs)
        )
        self.relu = nn.ReLU()

    def forward(self, z: Tensor) -> Tensor:
        return self.relu(self.body(z) + self.shortcut(z))


class ClassificationHead(nn.Module):
    """Logits from all resolutions: y_1 = B_1(z_1), y_i = B_i(z_i) + D_i(y_(i-1)), W pool(F(y_n)).

    B_i is a bottleneck, D_i a 3x3 convolution of stride 2 and F a 1x1 one, both with BatchNorm and
    ReLU; pool is the mean over all places.

    Args:
        channels: of each resolution of the state, the highest first.
        inner: channels inside the bottleneck of each.
        final: channels that are pooled.
        classes: number of logits.

    papers: Bai et al. 2020, sec. 3 and appendix A.
    """

    def __init__(
        self, channels: Sequence[int], inner: Sequence[int], *, final: int, classes: int
    ) -> None:
        super().__init__()
        outputs = [EXPANSION * width for width in inner]
        self.bottlenecks = nn.ModuleList(map(Bottleneck, channels, inner))
        self.down = nn.ModuleList(
            nn.Sequential(*_conv_layers(above, below, 3, stride=2, bias=True))
            for above, below in pairwise(outputs)
        )
        self.last = nn.Sequential(*_conv_layers(outputs[-1], final, 1, bias=True))
        self.classifier = nn.Linear(final, classes)

    def forward(self, states: Sequence[Tensor]) -> Tensor:
        """Return logits (batch, classes) of the state at all resolutions, the highest first."""
        y = self.bottlenecks[0](states[0])
        below = zip(self.bottlenecks[1:], self.down, states[1:], strict=True)
        for bottleneck, down, state in below:
            y = bottleneck(state) + down(y)
        return self.classifier(self.last(y).mean((2, 3)))


class AuxiliaryHeads(nn.ModuleList):
    """A linear classifier of the mean over all places, for each resolution by itself.

    Their losses reach each resolution directly, in training alone.

    papers: Bai 2022 (thesis), sec. 3.1 ("each resolution inducing its own loss") and 3.2.
    """

    def __init__(self, channels: Sequence[int], classes: int) -> None:
        super().__init__(nn.Linear(width, classes) for width in channels)

    def forward(self, states: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return logits (batch, classes) of each of the states (batch, channels, height, width)."""
        return tuple(head(z.mean((2, 3))) for head, z in zip(self, states, strict=True))


def check_bottlenecks(channels: tuple[int, ...], inner: tuple[int, ...], final: int) -> None:
    """Refuse what a `ClassificationHead` cannot be made of.

    Raises:
        ValueError: a number is not positive, or there is not one for each resolution.
    """
    check_within("(0, inf)", channels=channels, head_channels=inner, final=final)
    if len(channels) != len(inner):
        raise ValueError(
            f"channels and head_channels have a number for each resolution; got {len(channels)} "
            f"and {len(inner)}: {channels} and {inner}"
        )


# --- multiscale -----------------------------------------------------------------------------------

# What multiscale networks share, whatever is read from their state: stem, cell and head.


@dataclass(frozen=True, kw_only=True)
class MultiscaleConfig(VisionConfig):
    """What stem and cell of an MDEQ are.

    Args:
        channels: of each resolution of the state, the highest first; a single one makes the
            single-stream DEQ.
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

    auxiliary_class: ClassVar[Callable[[Sequence[int], int], nn.Module]]

    channels: tuple[int, ...] = (24, 24)
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
        check_fields(self, "(0, inf)", "channels", "expansion", "groups")
        if self.norm == "group" and any(width % self.groups for width in self.channels):
            raise ValueError(
                f"groups must divide the channels of each resolution; got {self.groups} groups of "
                f"{self.channels} channels"
            )
        check_fields(self, "[0, inf)", "halvings")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout is a share and must be in [0, 1); got {self.dropout}")
        check_fields(self, "(0, inf)", "initial")
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

    def sizes(self, height: int, width: int) -> list[tuple[int, int]]:
        """Return height and width of each resolution of the state, of an image of that size."""
        found: list[tuple[int, int]] = []
        for level in range(self.halvings + len(self.channels)):
            if level >= self.halvings:
                found.append((height, width))
            height, width = (height + 1) // 2, (width + 1) // 2
        return found

    @abc.abstractmethod
    def head(self) -> nn.Module:
        """Return a new head: states at all resolutions, the highest first -> the prediction."""

    def auxiliary_heads(self) -> nn.Module | None:
        """Return new heads of single resolutions, or None where there are to be none."""
        _, classes = self.require_shape()
        return self.auxiliary_class(self.channels, classes) if self.auxiliary else None

    @override
    def build(self, **layer: Any) -> Model:
        return MDEQ(self, **layer)


# --- networks -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MDEQCellConfig(MultiscaleConfig):
    """What stem, cell and head of a classifier of images are.

    Args:
        head_channels: inside the head's bottleneck at each resolution.
        final: channels that the head pools and classifies.
    """

    auxiliary_class = AuxiliaryHeads
    head_channels: tuple[int, ...] = (8, 16)
    final: int = 200

    @override
    def __post_init__(self) -> None:
        check_bottlenecks(self.channels, self.head_channels, self.final)
        super().__post_init__()

    @override
    def head(self) -> ClassificationHead:
        _, classes = self.require_shape()
        return ClassificationHead(
            self.channels, self.head_channels, final=self.final, classes=classes
        )


@dataclass(frozen=True, kw_only=True)
class MDEQConfig(MDEQCellConfig):
    """The architecture of a multiscale deep equilibrium network, or of a single-stream one.

    Its fields are those of `MDEQCellConfig`: shape, classes, `channels` of each resolution and what
    stem, cell and head are made of.
    """


@dataclass(frozen=True, kw_only=True)
class UnrolledConfig(ExplicitConfig, MultiscaleConfig):
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
    def network(self) -> MDEQUnrolled:
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
        self.stem = Stem(config)
        cell = MultiscaleCell(config)
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
        self.stem = Stem(config)
        self.cell = MultiscaleCell(config)
        self.head = config.head()
        self.auxiliary = config.auxiliary_heads()

    @override
    def forward(self, x: Tensor, *, carry: Any = None) -> Prediction:
        self.refuse_carry(carry)
        features = _features(self.stem, x, self.config)
        z = self.cell.start(features)
        layer = freeze_layer(self.cell, (features,), self.config.checkpoint)
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
