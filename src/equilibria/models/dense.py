"""A dense equilibrium network for inputs without a grid."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.models.base import ClassifierConfig, EquilibriumModel
from equilibria.nn import DEQ, init, spectral_norm


@dataclass(frozen=True, kw_only=True)
class DenseConfig(ClassifierConfig):
    """One tanh layer as wide as the state, its recurrent weight bounded in spectral norm.

    Args:
        shape: shape of one input, without the batch; it is flattened.
        classes: number of outputs.
        width: entries of the state.
        bound: largest singular value that the recurrent weight may have. Below 1 there is one
            fixed point and every start leads to it.
        scale: singular values of the recurrent weight at the start, which is Haar-orthogonal.
    """

    shape: tuple[int, ...] = (1, 8, 8)
    classes: int = 10
    width: int = 128
    bound: float = 0.95
    scale: float = 0.5

    def __post_init__(self) -> None:
        if min(*self.shape, self.classes, self.width) < 1:
            raise ValueError(
                "shape, classes and width must be positive; "
                f"got {self.shape}, {self.classes} and {self.width}"
            )
        if not (self.bound > 0.0 and self.scale >= 0.0):
            raise ValueError(
                f"bound must be positive and scale not negative; got {self.bound} and {self.scale}"
            )

    @override
    def build(self, **layer: Any) -> "Dense":
        return Dense(self, **layer)


class DenseCell(nn.Module):
    """f(z; u) = tanh(W z + u) with ||W||_2 <= bound, on states (batch, width)."""

    def __init__(self, config: DenseConfig) -> None:
        super().__init__()
        self.linear = nn.Linear(config.width, config.width, bias=False)
        init.orthogonal_(self.linear.weight, config.scale)
        spectral_norm(self.linear, bound=config.bound)

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        """Evaluate f once; `u` is the injection, (batch, width)."""
        return torch.tanh(self.linear(z) + u)


class Dense(EquilibriumModel):
    """z* = tanh(W z* + U x + b), logits = V z* + c.

    papers: Bai et al. 2019, sec. 3, with one dense layer; a bound on W
    below 1 makes f a contraction.
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
