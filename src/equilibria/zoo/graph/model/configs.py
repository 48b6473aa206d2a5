"""The networks for graphs that recipes name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from equilibria.checks import check_within
from equilibria.run.models.base import Model
from equilibria.zoo.graph.model.edges import Normalise, checked
from equilibria.zoo.graph.model.eignn import EIGNN, MGNNI
from equilibria.zoo.graph.model.ignn import IGNN, FiniteIGNN, Initial
from equilibria.zoo.graph.model.implicit import check_width
from equilibria.zoo.graph.model.network import GCN, StackConfig


@dataclass(frozen=True, kw_only=True)
class IGNNConfig(StackConfig):
    """An implicit graph network: one equilibrium or more.

    papers: Gu et al. 2020; Bai 2022 (thesis), Table 5.3.

    Args:
        kappa: the contraction of each layer, in (0, 1).
        activation: "relu", "tanh" or "leaky_relu".
        initial: W at the start, "identity" or "uniform"; see `IGNN`.
        normalise: "sym", "row" or null; null takes `radius`.
        self_loops: each node sends itself a message.
        radius: the largest spectral radius of the graphs, where they are not normalised; see
            `IGNN`.
    """

    kappa: float = 0.9
    activation: str = "relu"
    initial: Initial = "identity"
    normalise: Normalise | None = "sym"
    self_loops: bool = True
    radius: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What each layer is made with."""
        names = ("kappa", "activation", "initial", "normalise", "self_loops", "radius")
        return {name: getattr(self, name) for name in names}

    @override
    def layers(self, widths: Sequence[int], **layer: Any) -> list[nn.Module]:
        return [IGNN(a, b, layer=layer, **self.options) for a, b in pairwise(widths)]


@dataclass(frozen=True, kw_only=True)
class FiniteIGNNConfig(IGNNConfig):
    """The same network with each layer applied a fixed number of times.

    Args:
        steps: how often.
    """

    steps: int = 2

    @property
    @override
    def implicit(self) -> bool:
        return False

    @override
    def layers(self, widths: Sequence[int], **layer: Any) -> list[nn.Module]:
        return [FiniteIGNN(a, b, steps=self.steps, **self.options) for a, b in pairwise(widths)]


@dataclass(frozen=True, kw_only=True)
class EIGNNConfig(StackConfig):
    """A network with the linear equilibrium of EIGNN, iterated.

    papers: Liu et al. 2021.

    Args:
        gamma: how much of a signal is passed on, in (0, 1).
        normalise: "sym" or "row".
        self_loops: each node sends itself a message.
    """

    gamma: float = 0.8
    normalise: Normalise = "sym"
    self_loops: bool = True

    @override
    def layers(self, widths: Sequence[int], **layer: Any) -> list[nn.Module]:
        options = {"normalise": self.normalise, "self_loops": self.self_loops}
        return [EIGNN(a, b, gamma=self.gamma, layer=layer, **options) for a, b in pairwise(widths)]


@dataclass(frozen=True, kw_only=True)
class MGNNIConfig(EIGNNConfig):
    """A network with equilibria at several scales, joined by attention.

    papers: Liu et al. 2022.

    Args:
        scales: hops a step of each.
    """

    scales: tuple[int, ...] = (1, 2)

    @override
    def layers(self, widths: Sequence[int], **layer: Any) -> list[nn.Module]:
        options: dict[str, Any] = {"normalise": self.normalise, "self_loops": self.self_loops}
        options |= {"gamma": self.gamma, "scales": self.scales, "layer": layer}
        return [MGNNI(a, b, **options) for a, b in pairwise(widths)]


@dataclass(frozen=True, kw_only=True)
class GCNConfig(StackConfig):
    """A graph convolutional network.

    On nodes the last layer has as many outputs as there are classes, and `bias` says whether that
    layer has one.

    papers: Kipf and Welling 2017.

    Args:
        normalise: "sym" or "row".
    """

    hidden: tuple[int, ...] = (16,)
    normalise: Normalise = "sym"

    @property
    @override
    def implicit(self) -> bool:
        return False

    @override
    def build(self, **layer: Any) -> Model:
        _, classes, level = self.known()
        if level == "node" and self.readout == "linear":
            widths = (*self.hidden, classes)
            return replace(self, hidden=widths, readout="last").build(**layer)
        return super().build(**layer)

    @override
    def layers(self, widths: Sequence[int], **layer: Any) -> list[nn.Module]:
        last = len(widths) - 2
        biases = [self.bias or i < last or self.readout != "last" for i in range(last + 1)]
        return [
            GCN(a, b, bias=bias, normalise=self.normalise)
            for (a, b), bias in zip(pairwise(widths), biases, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class GraphMLPConfig(StackConfig):
    """A network that sees the features of each node, and no edge."""

    hidden: tuple[int, ...] = (16,)

    @property
    @override
    def implicit(self) -> bool:
        return False

    @override
    def layers(self, widths: Sequence[int], **layer: Any) -> list[nn.Module]:
        return [Alone(a, b) for a, b in pairwise(widths)]


class Alone(nn.Module):
    """A linear map of each node by itself, with the interface of a graph layer."""

    affine = True

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        check_within("(0, inf)", in_channels=in_channels, out_channels=out_channels)
        self.linear = nn.Linear(in_channels, out_channels)

    @override
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        checked(x, edge_index, edge_weight, batch)  # what other networks refuse, this one does too
        check_width(x, self.linear)
        return self.linear(x)
