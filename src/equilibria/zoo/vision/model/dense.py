"""A dense equilibrium network for inputs without a grid."""

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
    def build(self, **layer: Any) -> "Dense":
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
