"""f of (Implicit)^2 networks, and what of it depends on the coordinates alone."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable

from torch import Tensor, nn
from typing_extensions import override

from equilibria.nn import spectral_norm
from equilibria.zoo.signal.model.filters import FourierFilter, GaborFilter, Phases

__all__ = ["Cell", "Injection", "MultiplicativeCell", "SineCell"]


class Injection(nn.Module):
    """What f takes of the coordinates, computed once a solve: a tensor (batch, width) that is added
    to the state, then one for each layer.

    Args:
        first: coordinates -> what is added to the state.
        layers: coordinates -> what each layer takes, in order.

    papers: Bai 2022 (thesis), eq. 8.5 and 8.6; scales as in the released code.
    """

    def __init__(self, first: nn.Module, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        self.first = first
        self.layers = nn.ModuleList(layers)

    @override
    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the operands of a `Cell` at coordinates (batch, inputs)."""
        return (self.first(x), *(layer(x) for layer in self.layers))

    @classmethod
    def fourier(cls, inputs: int, width: int, layers: int, scale: float) -> Injection:
        """sin(w x + phi) for all, w by `scale` / sqrt(`layers` + 1)."""
        scale = scale / _root(layers)
        first, *later = (FourierFilter(inputs, width, scale) for _ in range(layers + 1))
        return cls(first, later)

    @classmethod
    def gabor(
        cls, inputs: int, width: int, layers: int, scale: float, alpha: float, first_alpha: float
    ) -> Injection:
        """Gabor filters, w by `scale` / sqrt(`layers` + 1) and gamma by alpha / (`layers` + 1)."""
        scale = scale / _root(layers)

        def new(mean: float) -> nn.Module:
            return GaborFilter(inputs, width, scale, mean / (layers + 1))

        return cls(new(first_alpha), [new(alpha) for _ in range(layers)])

    @classmethod
    def sine(cls, inputs: int, width: int, layers: int, scale: float) -> Injection:
        """sin(V x + c), and U x + phi for the layers, by `scale` / sqrt(`layers` + 1)."""
        scale = scale / _root(layers)
        later = [Phases(inputs, width, scale) for _ in range(layers)]
        return cls(FourierFilter(inputs, width, scale), later)


class Cell(nn.Module, abc.ABC):
    """f(z; x) of `layers` layers, each with a square weight, on states (batch, width).

    Args:
        width: entries of the state of a coordinate.
        layers: of f.
        bound: largest norm of each weight, or None. Below 1 f is a contraction, for sines and both
            filters are at most 1: there is one fixed point, and each start leads to it.
    """

    def __init__(self, width: int, layers: int, bound: float | None) -> None:
        super().__init__()
        square = [nn.Linear(width, width) for _ in range(layers)]
        for layer in square:
            # torch's own start is the same, by way of a gain
            nn.init.uniform_(layer.weight, -1 / math.sqrt(width), 1 / math.sqrt(width))
        self.layers = nn.ModuleList(square)
        if bound is not None:
            spectral_norm(self.layers, bound)

    @override
    def forward(self, z: Tensor, first: Tensor, *operands: Tensor) -> Tensor:
        """Evaluate f once.

        Args:
            z: states, (batch, width).
            first: what is added to the state.
            operands: what each layer takes of the coordinates.
        """
        h = z + first
        for layer, operand in zip(self.layers, operands, strict=True):
            h = self.apply_layer(layer(h), operand)
        return h

    @abc.abstractmethod
    def apply_layer(self, h: Tensor, operand: Tensor) -> Tensor:
        """Return a layer's output for h = W z + b, (batch, width)."""


class MultiplicativeCell(Cell):
    """f(z; x) = (W (z + g(x)) + b) o g'(x), with filters g; affine in z.

    With L layers h <- (W_i h + b_i) o g_i(x), from h = z + g_0(x).

    papers: Bai 2022 (thesis), eq. 8.6.
    """

    @override
    def apply_layer(self, h: Tensor, operand: Tensor) -> Tensor:
        return h * operand


class SineCell(Cell):
    """f(z; x) = sin(W (z + sin(V x + c)) + b + U x + phi).

    With L layers h <- sin(W_i h + b_i + U_i x + phi_i), from h = z + sin(V x + c). The two
    constants of a layer are kept apart, as in the released code: that of the sum starts as
    U(-pi, pi), wide, and that of W as torch's.

    papers: Bai 2022 (thesis), eq. 8.5.
    """

    @override
    def apply_layer(self, h: Tensor, operand: Tensor) -> Tensor:
        return (h + operand).sin()


def _root(layers: int) -> float:
    return math.sqrt(layers + 1)
