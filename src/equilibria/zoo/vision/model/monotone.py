"""Monotone equilibrium networks, whose fixed point exists and is unique whatever the weights."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from equilibria.checks import check_fields
from equilibria.nn import DEQ
from equilibria.run.models.base import EquilibriumModel
from equilibria.zoo.vision.model.config import VisionConfig
from equilibria.zoo.vision.model.monotone_map import MonotoneMap

__all__ = [
    "MonotoneCell",
    "MonotoneConv",
    "MonotoneConvConfig",
    "MonotoneDense",
    "MonotoneDenseConfig",
]

BORDER = 1
"""Places at the lowest resolution, on each side, that are kept at zero around an image."""


@dataclass(frozen=True, kw_only=True)
class MonotoneConvConfig(VisionConfig):
    """The architecture of a convolutional monotone equilibrium network.

    On 3 x 16 x 16 with 10 classes, channels (48,) have 50,508 parameters and (16, 32) 40,432.

    Args:
        channels: of each resolution of the state, the highest first, each half of the one before.
        m: how strongly monotone the operator is, positive; the larger, the faster the solves and
            the smaller the family of functions.
        squares: squares along each side over which each resolution is averaged for the classifier.
    """

    channels: tuple[int, ...] = (48,)
    m: float = 1.0
    squares: int = 4

    @override
    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "channels", "squares")
        _check_m(self.m)
        super().__post_init__()

    @property
    @override
    def min_size(self) -> int:
        return 2 ** (len(self.channels) - 1)

    @property
    @override
    def remedy(self) -> str:
        return f"take larger images, or fewer resolutions (channels: {self.channels})"

    @override
    def build(self, **layer: Any) -> "MonotoneConv":
        return MonotoneConv(self, **layer)


@dataclass(frozen=True, kw_only=True)
class MonotoneDenseConfig(VisionConfig):
    """The architecture of a monotone equilibrium network without a grid.

    Args:
        width: entries of the state.
        m: how strongly monotone the operator is, positive; the larger, the faster the solves and
            the smaller the family of functions.
    """

    width: int = 100
    m: float = 1.0

    @override
    def __post_init__(self) -> None:
        check_fields(self, "(0, inf)", "width")
        _check_m(self.m)
        super().__post_init__()

    @override
    def build(self, **layer: Any) -> "MonotoneDense":
        return MonotoneDense(self, **layer)


class MonotoneCell(nn.Module):
    """f(y; u) = W relu(y) + u, with I - W strongly monotone.

    y = f(y; u) and z = relu(W z + u) are one equation, with z = relu(y) and y = W z + u. The state
    is y, not z: f(y) then tells a splitting method what it needs, W z + u before the relu, and the
    residual of a state is the same number for every solver.

    In the border around an image z is kept at zero, so that circular convolutions don't reach
    around it.

    Args:
        linear: W.
        inner: for each resolution first and last row, and first and last column, inside the border.
    """

    def __init__(
        self, linear: MonotoneMap, inner: Sequence[tuple[int, int, int, int]] | None = None
    ) -> None:
        super().__init__()
        self.linear = linear
        self.inner = tuple(inner) if inner is not None else None

    def forward(self, y: Sequence[Tensor], u: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Evaluate f once; `u` is the injection, of the state's shapes."""
        image = self.linear(self.activate(y))
        return tuple((w + x).contiguous() for w, x in zip(image, u, strict=True))

    def activate(self, y: Sequence[Tensor]) -> list[Tensor]:
        """Return z = relu(y), and zero in the border."""
        return [self._bordered(torch.relu(x), 0.0, i) for i, x in enumerate(y)]

    def lift(self, z: Sequence[Tensor], y: Sequence[Tensor]) -> list[Tensor]:
        """Return the state that `activate` makes `z` of and that is nearest to `y`."""
        out: list[Tensor] = []
        for i, (one, other) in enumerate(zip(z, y, strict=True)):
            lifted = torch.where(one > 0, one, other.clamp(max=0.0))
            out.append(self._bordered(lifted, other, i))
        return out

    def _bordered(self, x: Tensor, border: Tensor | float, i: int) -> Tensor:
        """`x` inside and `border` in the border of resolution `i`."""
        if self.inner is None:
            return x
        top, bottom, left, right = self.inner[i]
        rows = torch.arange(x.shape[2], device=x.device)
        columns = torch.arange(x.shape[3], device=x.device)
        inside = ((rows >= top) & (rows < bottom))[:, None] & (columns >= left) & (columns < right)
        return torch.where(inside, x, border)


class MonotoneConv(EquilibriumModel):
    """z* = relu(W z* + U x + b) on one or several grids, logits from means over squares of them.

    The solvers `ForwardBackward` and `PeacemanRachford` are made for it; every other one serves
    too. With several resolutions x enters at the highest.

    papers: Winston and Kolter 2020, sec. 4.
    """

    def __init__(self, config: MonotoneConvConfig, **layer: Any) -> None:
        super().__init__()
        (inputs, height, width), classes = config.required()
        self.config = config
        coarse = 2 ** (len(config.channels) - 1)
        margin = BORDER * coarse
        full = [_multiple(side + 2 * margin, coarse) for side in (height, width)]
        self.margins = (
            *(margin, full[1] - width - margin),
            *(margin, full[0] - height - margin),
        )
        factors = [2**i for i in range(len(config.channels))]
        self.embed = nn.Conv2d(inputs, config.channels[0], 3, padding=1)
        self.bias = nn.ParameterList(
            nn.Parameter(torch.zeros(count)) for count in config.channels[1:]
        )
        places = [(full[0] // k, full[1] // k) for k in factors]
        inner = [
            (
                *(margin // k, margin // k + math.ceil(height / k)),
                *(margin // k, margin // k + math.ceil(width / k)),
            )
            for k in factors
        ]
        linear = MonotoneMap(config.channels, places, kernel=3, m=config.m)
        self.deq = DEQ(MonotoneCell(linear, inner), **layer)
        self.inner, self.shapes = inner, linear.shapes
        self.head = nn.Linear(sum(config.channels) * config.squares**2, classes)

    @override
    def inject(self, x: Tensor) -> tuple[tuple[Tensor, ...]]:
        """Return U x + b at every resolution, for images (batch, channels, height, width)."""
        self.config.check(x)
        first = functional.pad(self.embed(x), self.margins).contiguous()
        _, *lower = self.shapes
        rest = (
            bias[:, None, None].expand(len(x), *shape).contiguous()
            for bias, shape in zip(self.bias, lower, strict=True)
        )
        return ((first, *rest),)

    @override
    def readout(self, z: Sequence[Tensor]) -> Tensor:
        """Return logits (batch, classes) of the state, before its relu."""
        squares = []
        for y, (top, bottom, left, right) in zip(z, self.inner, strict=True):
            image = torch.relu(y[:, :, top:bottom, left:right])
            squares.append(functional.adaptive_avg_pool2d(image, self.config.squares).flatten(1))
        return self.head(torch.cat(squares, dim=1))


class MonotoneDense(EquilibriumModel):
    """z* = relu(W z* + U x + b), logits = V z* + c, for flattened images.

    The solvers `ForwardBackward` and `PeacemanRachford` are made for it; every other one serves
    too. The state has its entries for channels of a grid of one place.

    papers: Winston and Kolter 2020, sec. 4.
    """

    def __init__(self, config: MonotoneDenseConfig, **layer: Any) -> None:
        super().__init__()
        shape, classes = config.required()
        self.config = config
        self.embed = nn.Linear(math.prod(shape), config.width)
        linear = MonotoneMap([config.width], [(1, 1)], kernel=1, m=config.m)
        self.deq = DEQ(MonotoneCell(linear), **layer)
        self.head = nn.Linear(config.width, classes)

    @override
    def inject(self, x: Tensor) -> tuple[tuple[Tensor]]:
        """Return U x + b, (batch, width, 1, 1), for images (batch, channels, height, width)."""
        self.config.check(x)
        return ((self.embed(x.flatten(1))[:, :, None, None],),)

    @override
    def readout(self, z: Sequence[Tensor]) -> Tensor:
        """Return logits (batch, classes) of the state, before its relu."""
        return self.head(torch.relu(z[0]).flatten(1))


def _check_m(m: float) -> None:
    if not 0.0 < m < math.inf:
        raise ValueError(f"m must be positive, or the fixed point need not exist; got {m}")


def _multiple(number: int, of: int) -> int:
    """The smallest multiple of `of` that is at least `number`."""
    return -(-number // of) * of
