"""A convolutional equilibrium network for images."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn import DEQ, init, spectral_norm
from equilibria.run.models.base import ClassifierConfig, EquilibriumModel


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
    def build(self, **layer: Any) -> "Conv":
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
