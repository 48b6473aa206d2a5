"""The networks for graphs that recipes name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from typing_extensions import override

from equilibria.run.models.base import Model
from equilibria.zoo.graph.model.edges import Normalize
from equilibria.zoo.graph.model.eignn import EIGNN, MGNNI
from equilibria.zoo.graph.model.ignn import IGNN, FiniteIGNN, Initial
from equilibria.zoo.graph.model.implicit import GraphLayer
from equilibria.zoo.graph.model.network import GCN, GraphConfig, NodeLayer


@dataclass(frozen=True, kw_only=True)
class IGNNConfig(GraphConfig):
    """An implicit graph network: one equilibrium or more.

    papers: Gu et al. 2020; Bai 2022 (thesis), Table 5.3.

    Args:
        kappa: the contraction of each layer, in (0, 1).
        activation: "relu", "tanh" or "leaky_relu".
        initial: W at the start, "identity" or "uniform"; see `IGNN`.
        normalize: "sym", "row" or null; null takes `radius`.
        self_loops: each node sends itself a message.
        radius: the largest spectral radius of the graphs, where they are not normalised; see
            `IGNN`.
    """

    kappa: float = 0.9
    activation: str = "relu"
    initial: Initial = "identity"
    normalize: Normalize | None = "sym"
    self_loops: bool = True
    radius: float | None = None

    layer = IGNN
    options = ("kappa", "activation", "initial", "normalize", "self_loops", "radius")


@dataclass(frozen=True, kw_only=True)
class FiniteIGNNConfig(IGNNConfig):
    """The same network with each layer applied a fixed number of times.

    Args:
        steps: how often.
    """

    steps: int = 2

    layer = FiniteIGNN
    options = ("steps", *IGNNConfig.options)


@dataclass(frozen=True, kw_only=True)
class EIGNNConfig(GraphConfig):
    """A network with the linear equilibrium of EIGNN, iterated.

    papers: Liu et al. 2021.

    Args:
        gamma: how much of a signal is passed on, in (0, 1).
        normalize: "sym" or "row".
        self_loops: each node sends itself a message.
    """

    gamma: float = 0.8
    normalize: Normalize = "sym"
    self_loops: bool = True

    layer = EIGNN
    options = ("gamma", "normalize", "self_loops")


@dataclass(frozen=True, kw_only=True)
class MGNNIConfig(EIGNNConfig):
    """A network with equilibria at several scales, joined by attention.

    papers: Liu et al. 2022.

    Args:
        scales: hops a step of each.
    """

    scales: tuple[int, ...] = (1, 2)

    layer = MGNNI
    options = ("scales", *EIGNNConfig.options)


@dataclass(frozen=True, kw_only=True)
class GCNConfig(GraphConfig):
    """A graph convolutional network.

    On nodes the last layer has as many outputs as there are classes, and `bias` says whether that
    layer has one.

    papers: Kipf and Welling 2017.

    Args:
        normalize: "sym" or "row".
    """

    hidden: tuple[int, ...] = (16,)
    normalize: Normalize = "sym"

    layer = GCN

    @override
    def build(self, **layer: Any) -> Model:
        _, classes, level = self.facts()
        if level == "node" and self.readout == "linear":
            return replace(self, hidden=(*self.hidden, classes), readout="last").build(**layer)
        return super().build(**layer)

    @override
    def layers(self, widths: Sequence[int], **layer: Any) -> list[GraphLayer]:
        last = len(widths) - 2
        biases = [self.bias or i < last or self.readout != "last" for i in range(last + 1)]
        return [
            GCN(a, b, bias=bias, normalize=self.normalize)
            for (a, b), bias in zip(pairwise(widths), biases, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class GraphMLPConfig(GraphConfig):
    """A network that sees the features of each node, and no edge."""

    hidden: tuple[int, ...] = (16,)

    layer = NodeLayer
