"""A dense equilibrium network for inputs without a grid."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn import DEQ, init, spectral_norm
from equilibria.run.models.base import ClassifierConfig, EquilibriumModel


@dataclass(frozen=True, kw_only=True)
class DenseConfig(ClassifierConfig):
    """One tanh layer as wide as the state.

    Args:
        shape: shape of one input, without the batch; it is flattened.
        classes: number of outputs.
        width: entries of the state.
        bound: largest singular value that the recurrent weight may have. Below 1 there is one
            fixed point and every start leads to it; None for no bound.
        scale: singular values of the recurrent weight at the start, which is Haar-orthogonal.
        injection: where the input is added: "inside" the tanh, or "outside", behind it.
    """

    shape: tuple[int, ...] = (1, 8, 8)
    classes: int = 10
    width: int = 128
    bound: float | None = 0.95
    scale: float = 0.5
    injection: Literal["inside", "outside"] = "inside"

    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "shape", "classes", "width")
        check_fields(self, "(0, inf]", "bound")
        check_fields(self, "[0, inf)", "scale")

    @override
    def build(self, **layer: Any) -> Dense:
        return Dense(self, **layer)


class DenseCell(nn.Module):
    """f(z; u) = tanh(W z + u), or tanh(W z) + u, on states (batch, width)."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.width, config.width, bias=False)
        init.orthogonal_(self.linear.weight, config.scale)
        self.outside = config.injection == "outside"
        self.theory = init.Elementwise(activation="tanh", injection=config.injection)
        if config.bound is not None:
            spectral_norm(self.linear, bound=config.bound)

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        """Evaluate f once; `u` is the injection, (batch, width)."""
        h = self.linear(z)
        return torch.tanh(h) + u if self.outside else torch.tanh(h + u)


class Dense(EquilibriumModel):
    """z* = tanh(W z* + u), or tanh(W z*) + u, with u = U x + b; logits = V z* + c.

    papers: Bai et al. 2019, sec. 3, with one dense layer; a bound on W below 1 makes f a
    contraction. Agarwala and Schoenholz 2022, eq. 21, for what is added outside.
    """

    def __init__(self, config: DenseConfig, **layer: Any) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Linear(math.prod(config.shape), config.width)
        self.deq = DEQ(DenseCell(config), **layer)
        self.head = nn.Linear(config.width, config.classes)

    @override
    def inject(self, x: Tensor) -> tuple[Tensor]:
        """Return U x + b, (batch, width), for inputs (batch, *shape)."""
        return (self.embed(x.flatten(1)),)

    @override
    def readout(self, z: Tensor) -> Tensor:
        """Return logits, (batch, classes), from a state (batch, width)."""
        return self.head(z)


# --- conv -----------------------------------------------------------------------------------------

# A convolutional equilibrium network for images.


@dataclass(frozen=True, kw_only=True)
class ConvConfig(ClassifierConfig):
    """One 3x3 convolution on a grid, applied until nothing changes.

    Args:
        shape: channels, height and width of one image.
        classes: number of outputs.
        channels: channels of the state.
        groups: groups of the stem's GroupNorm; they must divide `channels`.
        stride: pixels, along each side, for each place of the grid.
        bound: what the norm of the cell's convolution may not exceed. Below 1 there is one fixed
            point and every start leads to it. The estimate of the norm errs on the safe side, by
            about 2 for random kernels, so a bound of 1.5 leaves most cells a contraction too, and
            makes more use of the depth.
        scale: singular values of the cell's kernel, flattened, at the start: Haar-orthogonal.
    """

    shape: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    channels: int = 32
    groups: int = 8
    stride: int = 4
    bound: float = 0.95
    scale: float = 0.3

    def __post_init__(self) -> None:
        counts = ("shape", "classes", "channels", "groups", "stride")
        check_fields(self, "(0, inf)", *counts)
        check_fields(self, "(0, inf]", "bound")
        check_fields(self, "[0, inf)", "scale")
        if self.channels % self.groups:
            raise ValueError(
                f"groups must divide channels; got {self.groups} groups of {self.channels} channels"
            )

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the state."""
        _, height, width = self.shape
        return (height - 1) // self.stride + 1, (width - 1) // self.stride + 1

    @override
    def build(self, **layer: Any) -> Conv:
        return Conv(self, **layer)


class ConvCell(nn.Module):
    """f(z; u) = relu(K * z + u) with ||K *||_2 <= bound, on states (batch, channels, *grid)."""

    def __init__(self, config: ConvConfig) -> None:
        super().__init__()
        self.conv = nn.Conv2d(config.channels, config.channels, 3, padding=1, bias=False)
        init.orthogonal_(self.conv.weight, config.scale)
        spectral_norm(self.conv, bound=config.bound)
        # Away from the border it is as wide a dense layer as the kernel has weights for an output.
        self.theory = init.Elementwise(activation="relu")

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        """Evaluate f once; `u` is the injection, of the state's shape."""
        return torch.relu(self.conv(z) + u)


class Conv(EquilibriumModel):
    """A strided convolution, the cell at its fixed point, and a linear readout of every place.

    Each evaluation lets a place see one place further; at the fixed point each sees them all.

    papers: Bai et al. 2019, sec. 3, with one convolution at one scale; a bound on K
    below 1 makes f a contraction.
    """

    def __init__(self, config: ConvConfig, **layer: Any) -> None:
        super().__init__()
        self.config = config
        channels, stride = config.channels, config.stride
        height, width = config.grid
        self.stem = nn.Sequential(
            nn.Conv2d(config.shape[0], channels, 2 * (stride // 2) + 1, stride, stride // 2),
            nn.GroupNorm(config.groups, channels),
        )
        self.deq = DEQ(ConvCell(config), **layer)
        self.head = nn.Linear(channels * height * width, config.classes)

    @override
    def inject(self, x: Tensor) -> tuple[Tensor]:
        """Return the stem's features, (batch, channels, *grid), of images (batch, *shape)."""
        return (self.stem(x),)

    @override
    def readout(self, z: Tensor) -> Tensor:
        """Return logits, (batch, classes), from a state (batch, channels, *grid)."""
        return self.head(z.flatten(1))
