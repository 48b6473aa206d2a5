"""Graph convolution, the explicit layer that implicit ones are compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from equilibria.zoo.graph.model.implicit import GraphLayer, linear

__all__ = ["GCN"]


class GCN(GraphLayer):
    """Y = A^T X W^T + b, A with self-loops and normalised.

    papers: Kipf and Welling 2017, eq. 2.

    Args:
        in_channels: features of a node; -1 for those of the first call.
        out_channels: features that come out.
        bias: b.
        flow, normalise, self_loops: as of `GraphLayer`.
    """

    affine = True
    """It leaves the activation to the network."""

    def __init__(
        self, in_channels: int, out_channels: int, *, bias: bool = True, **options: Any
    ) -> None:
        super().__init__(in_channels, out_channels, **options)
        self.linear = linear(in_channels, out_channels)
        self.bias = nn.Parameter(torch.zeros(out_channels)) if bias else None

    @property
    @override
    def entry(self) -> nn.Module:
        return self.linear

    @override
    def reset_parameters(self) -> None:
        self.linear.reset_parameters()
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @override
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        batch: Tensor | None = None,
    ) -> Tensor:
        edges, weight = self.read(x, edge_index, edge_weight, batch)
        y = edges(self.linear(x), weight)
        return y if self.bias is None else y + self.bias
