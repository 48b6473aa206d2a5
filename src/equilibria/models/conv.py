"""A convolutional equilibrium network for images."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.models.base import ClassifierConfig, EquilibriumModel
from equilibria.nn import DEQ, weight_norm


@dataclass(frozen=True, kw_only=True)
class ConvConfig(ClassifierConfig):
    """One 3x3 convolution on a grid, applied until nothing changes.

    Args:
        shape: channels, height and width of one image.
        classes: number of outputs.
        channels: channels of the state.
        groups: groups of each GroupNorm; they must divide `channels`.
        stride: pixels, along each side, for each place of the grid.
        gain: gain of the cell's GroupNorm at the start, about the spectral radius there: small
            enough and the first solves converge.
    """

    shape: tuple[int, int, int] = (1, 28, 28)
    classes: int = 10
    channels: int = 32
    groups: int = 8
    stride: int = 4
    gain: float = 0.5

    def __post_init__(self) -> None:
        if min(*self.shape, self.classes, self.channels, self.groups, self.stride) < 1:
            raise ValueError(
                "shape, classes, channels, groups and stride must be positive; got "
                f"{self.shape}, {self.classes}, {self.channels}, {self.groups} and {self.stride}"
            )
        if self.channels % self.groups:
            raise ValueError(
                f"groups must divide channels; got {self.groups} groups of {self.channels} channels"
            )
        if not self.gain >= 0.0:
            raise ValueError(f"gain must not be negative; got {self.gain}")

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width of the state."""
        _, height, width = self.shape
        return (height - 1) // self.stride + 1, (width - 1) // self.stride + 1

    @override
    def build(self, **layer: Any) -> "Conv":
        return Conv(self, **layer)


class ConvCell(nn.Module):
    """f(z; u) = relu(norm(K * z) + u) on states (batch, channels, height, width).

    The kernel K is weight-normalised. GroupNorm bounds what is added to u, so f maps into a bounded
    set and, being continuous, has a fixed point whatever the weights.
    """

    def __init__(self, config: ConvConfig) -> None:
        super().__init__()
        channels = config.channels
        self.conv = weight_norm(nn.Conv2d(channels, channels, 3, padding=1, bias=False))
        self.norm = nn.GroupNorm(config.groups, channels)
        nn.init.constant_(self.norm.weight, config.gain)

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        """Evaluate f once; `u` is the injection, of the state's shape."""
        return torch.relu(self.norm(self.conv(z)) + u)


class Conv(EquilibriumModel):
    """A strided convolution, the cell at its fixed point, and a linear readout of every place.

    Each evaluation lets a place see one place further, at the fixed point each sees them all. The
    norms follow the multiscale DEQ of Bai et al. 2020 (GroupNorm and weight normalisation).
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
