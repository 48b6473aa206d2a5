"""The architectures of networks for optical flow."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.run.models.base import ExplicitConfig, ModelConfig
from equilibria.zoo.flow.model.cell import UpdateWidths
from equilibria.zoo.flow.model.correlation import (
    SMALLEST,
    Correlation,
    CorrelationForm,
    correlation,
)
from equilibria.zoo.flow.model.encoders import (
    STRIDE,
    BilinearUpsampling,
    ConvexUpsampling,
    EncoderKind,
    Norm,
    Upsampling,
)
from equilibria.zoo.flow.model.network import DEQFlow, UnrolledFlow

Size = Literal["B", "L", "H"]
"""Sizes of the thesis, by 128, 192 or 256 hidden channels."""

_HIDDEN: dict[Size, int] = {"B": 128, "L": 192, "H": 256}


@dataclass(frozen=True, kw_only=True)
class FlowConfig(ModelConfig):
    """What all networks for optical flow have in common.

    Args:
        encoder: residual blocks of two 3x3 convolutions ("basic"), or bottlenecks ("small").
        stages: widths of the encoders' stages; null for (64, 96, 128), or (32, 64, 96) of the small
            one, which must be multiples of 4.
        features: channels of which the correlation is the inner product.
        context_norm: normalisation in the encoder of the context; null for "batch" in the basic
            one and "none" in the small one. That of the features is always "instance".
        freeze_norm: batch normalisation uses its stored statistics in training too.
        correlation: "all-pairs" is computed once and takes memory quadratic in the number of
            pixels; "on-demand" is computed at each lookup.
        levels: of the correlation. Images need 2^(levels + 3) pixels a side, after padding.
        radius: of the lookup, in pixels of each level.
        upsampling: "convex", with learned weights, or "bilinear".
        mask: channels inside the head that gives these weights.

    papers: Teed and Deng 2020; Bai 2022 (thesis), ch. 7.
    """

    called: ClassVar[str]
    """What tables call the network."""

    attention: ClassVar[bool] = False
    """Whether motion features are aggregated by the attention of the context."""

    encoder: EncoderKind = "basic"
    stages: tuple[int, int, int] | None = None
    features: int = 256
    context_norm: Norm | None = None
    freeze_norm: bool = False
    correlation: CorrelationForm = "all-pairs"
    levels: int = 4
    radius: int = 4
    upsampling: Upsampling = "convex"
    mask: int = 256

    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "features", "mask")
        if self.stages is not None:
            if len(self.stages) != 3:
                raise ValueError(f"stages must be three widths; got {self.stages}")
            check_fields(self, "(0, inf)", "stages")
        for name, known in (
            ("encoder", get_args(EncoderKind)),
            ("context_norm", (None, *get_args(Norm))),
            ("upsampling", get_args(Upsampling)),
        ):
            if (given := getattr(self, name)) not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(str, known))}; got {given!r}"
                )
        if self.encoder == "small" and any(width % 4 for width in self.stages or ()):
            raise ValueError(f"stages of bottlenecks must be multiples of 4; got {self.stages}")
        self.lookup()

    @property
    @override
    def title(self) -> str:
        return self.called

    @property
    @abc.abstractmethod
    def widths(self) -> UpdateWidths:
        """Channels inside the update operator."""

    @property
    def starts_from_context(self) -> bool:
        """Whether the encoder of the context gives the first hidden state too."""
        return True

    def lookup(self) -> Correlation:
        """Return the correlation."""
        return correlation(self.correlation, self.levels, self.radius)

    def upsampler(self) -> ConvexUpsampling | BilinearUpsampling:
        """Return what makes a flow for each pixel."""
        if self.upsampling == "bilinear":
            return BilinearUpsampling()
        return ConvexUpsampling(self.widths.hidden, self.mask)

    def grid(self, height: int, width: int) -> tuple[int, int]:
        """Return height and width of the features of images of that size."""
        return -(-height // STRIDE), -(-width // STRIDE)

    def correlation_bytes(self, batch: int, height: int, width: int) -> int:
        """Return the memory of the correlation in bytes, before it is allocated.

        In training the gradient takes as much once more.

        Args:
            batch: pairs of images.
            height: of the images, in pixels.
            width: of the images.
        """
        return self.lookup().bytes(batch, *self.grid(height, width), self.features)

    def attention_bytes(self, batch: int, height: int, width: int) -> int:
        """Return the memory of the attention in bytes, before it is allocated; 0 without one.

        Its softmax takes as much once more while it is computed, and so does the gradient.

        Args:
            batch: pairs of images.
            height: of the images, in pixels.
            width: of the images.
        """
        rows, columns = self.grid(height, width)
        return 4 * batch * (rows * columns) ** 2 if self.attention else 0

    def check(self, x: Any) -> tuple[Tensor, Tensor]:
        """Return a pair of batches of images, after checking it.

        Args:
            x: first and second images, (batch, 3, height, width) each, RGB from 0 to 255, uint8 or
                floating point.

        Raises:
            TypeError: no pair of tensors, or another dtype.
            ValueError: no RGB images, sizes that differ, an empty batch, or images so small that
                the coarsest level of the correlation has less than 2 x 2 pixels.
        """
        given = [*x] if isinstance(x, tuple | list) else [x]
        if len(given) != 2 or not all(isinstance(each, Tensor) for each in given):
            raise TypeError(
                "optical flow is of two images: expected a pair (first, second) of tensors, got "
                f"{' and '.join(type(each).__name__ for each in given) or 'none'}"
            )
        first, second = given
        for each in (first, second):
            if not (each.dtype == torch.uint8 or each.is_floating_point()):
                raise TypeError(
                    "expected images of uint8 or floating-point numbers from 0 to 255, got "
                    f"{each.dtype}: divide 16-bit images by 257"
                )
            if each.ndim != 4 or each.shape[1] != 3:
                raise ValueError(
                    "expected RGB images (batch, 3, height, width), got "
                    f"{tuple(each.shape)}: repeat a grey channel three times, leave out alpha"
                )
        if first.shape != second.shape:
            raise ValueError(
                "both images must have the same size; got "
                f"{tuple(first.shape)} and {tuple(second.shape)}"
            )
        if not first.shape[0]:
            raise ValueError("the batch is empty: there is no pair of images")
        height, width = first.shape[2:]
        grid = self.grid(height, width)
        if min(grid) >> (self.levels - 1) < SMALLEST:
            side = STRIDE * SMALLEST << (self.levels - 1)
            raise ValueError(
                f"images of {height} x {width} pixels are too small: the coarsest of {self.levels} "
                f"correlation levels would have less than 2 x 2 pixels. Take images of {side} x "
                f"{side} at least, or fewer levels"
            )
        return first, second


@dataclass(frozen=True, kw_only=True)
class SizedConfig(FlowConfig):
    """Networks whose update operator is RAFT's, of any width.

    Args:
        size: of the thesis: B, L or H, with 128, 192 or 256 hidden channels; null for `hidden`, or
            B where that is null too.
        hidden: channels of the hidden state, in place of a size: even, at least 4. All other widths
            of the update operator are in proportion.
        head: channels inside the flow head; null for twice the hidden ones, at most 256. The second
            release of the thesis' H has 512.
    """

    size: Size | None = None
    hidden: int | None = None
    head: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None and self.hidden is not None:
            raise ValueError(
                f"size ({self.size}) and hidden ({self.hidden}) both say how wide the network is: "
                "give one of them"
            )
        if self.size is not None and self.size not in _HIDDEN:
            raise ValueError(f"size must be B, L or H; got {self.size!r}")
        if self.hidden is not None and (self.hidden < 4 or self.hidden % 2):
            raise ValueError(f"hidden must be an even number of at least 4; got {self.hidden}")
        check_fields(self, "(0, inf)", "head")
        super().__post_init__()

    @property
    @override
    def widths(self) -> UpdateWidths:
        return UpdateWidths.basic(self.hidden or _HIDDEN[self.size or "B"], self.head)


@dataclass(frozen=True, kw_only=True)
class SmallConfig(FlowConfig):
    """Networks with the encoders and the update operator of the small RAFT.

    Its fields are those of `FlowConfig`; `mask` is for convex upsampling.
    """

    encoder: EncoderKind = "small"
    features: int = 128
    radius: int = 3
    upsampling: Upsampling = "bilinear"

    @property
    @override
    def widths(self) -> UpdateWidths:
        return UpdateWidths.small()


@dataclass(frozen=True, kw_only=True)
class UnrolledFlowConfig(FlowConfig, ExplicitConfig):
    """A network with a fixed number of refinements.

    Args:
        steps: refinements.
        eval_steps: refinements in eval mode; null for `steps`.
    """

    steps: int = 12
    eval_steps: int | None = None

    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "steps", "eval_steps")
        super().__post_init__()

    @override
    def network(self) -> UnrolledFlow:
        return UnrolledFlow(self)


@dataclass(frozen=True, kw_only=True)
class RAFTConfig(SizedConfig, UnrolledFlowConfig):
    """The architecture of RAFT, of 5,257,536 parameters.

    Its fields are those of `FlowConfig`, `SizedConfig` and `UnrolledFlowConfig`. The source trains
    12 refinements, and tests 32 on Sintel and 24 on KITTI.

    papers: Teed and Deng 2020.
    """

    called = "RAFT"


@dataclass(frozen=True, kw_only=True)
class RAFTSmallConfig(SmallConfig, UnrolledFlowConfig):
    """The architecture of the small RAFT, of 990,162 parameters.

    Its fields are those of `SmallConfig` and `UnrolledFlowConfig`.

    papers: Teed and Deng 2020, appendix.
    """

    called = "RAFT, small"


@dataclass(frozen=True, kw_only=True)
class GMAConfig(RAFTConfig):
    """The architecture of GMA: RAFT with global motion aggregation, of 5,798,209 parameters.

    Its fields are those of `RAFTConfig`. Released weights hold 81,664 more, of positions that the
    released network does not read.

    papers: Jiang et al. 2021.
    """

    attention = True
    called = "GMA"


@dataclass(frozen=True, kw_only=True)
class EquilibriumFlowConfig(FlowConfig):
    """A network whose refinement is solved as an equilibrium.

    Args:
        weight_norm: weight normalisation of the update operator.
        detach_lookup: the positions at which the correlation is looked up are detached, as in the
            source's first stage of training. With a one-step gradient this changes nothing; with
            more steps, or the exact adjoint, the gradient is not that of the solution.
        start: initial hidden state: "zeros", or "context", tanh of an output of the context
            encoder as in RAFT, for weights that were trained with it.
        start_noise: standard deviation, in pixels, of the random flow at which the solve of every
            second training sample starts: one offset for the image plus independent noise at each
            position; its hidden state is uniform in (-1, 1). The solution then depends less on the
            start, as reuse needs. 0: all solves start at `start`, with no flow, as in evaluation.

    papers: Bai 2022 (thesis), sec. 7.3; random starts: Anil et al. 2022, "Path independent
    equilibrium models can better exploit test-time computation".
    """

    weight_norm: bool = True
    detach_lookup: bool = False
    start: Literal["zeros", "context"] = "zeros"
    start_noise: float = 0.0

    def __post_init__(self) -> None:
        if self.start not in ("zeros", "context"):
            raise ValueError(f"start must be 'zeros' or 'context'; got {self.start!r}")
        check_fields(self, "[0, inf)", "start_noise")
        super().__post_init__()

    @property
    @override
    def starts_from_context(self) -> bool:
        return self.start == "context"

    @override
    def build(self, **layer: Any) -> DEQFlow:
        return DEQFlow(self, **layer)


@dataclass(frozen=True, kw_only=True)
class DEQRAFTConfig(SizedConfig, EquilibriumFlowConfig):
    """The architecture of RAFT whose refinement is solved as an equilibrium.

    Sizes B, L and H have 5,241,024, 8,447,360 and 12,796,480 parameters; weight normalisation adds
    a length for each output of the update operator, 1,792 at B.

    Its fields are those of `FlowConfig`, `SizedConfig` and `EquilibriumFlowConfig`.

    papers: Bai 2022 (thesis), eq. 7.4.
    """

    called = "DEQ-RAFT"


@dataclass(frozen=True, kw_only=True)
class DEQRAFTSmallConfig(SmallConfig, EquilibriumFlowConfig):
    """The architecture of the small RAFT whose refinement is solved as an equilibrium.

    Its fields are those of `SmallConfig` and `EquilibriumFlowConfig`. The papers have no such
    network: it is for the weights of the small RAFT.
    """

    called = "DEQ-RAFT, small"


@dataclass(frozen=True, kw_only=True)
class DEQGMAConfig(DEQRAFTConfig):
    """The architecture of GMA whose refinement is solved as an equilibrium.

    Size B has 5,781,697 parameters without weight normalisation. Its fields are those of
    `DEQRAFTConfig`.

    papers: Bai 2022 (thesis), eq. 7.5.
    """

    attention = True
    called = "DEQ-GMA"
