"""Layers on which solvers are compared: cells as large as networks have, and small tanh layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map

State = Any
SIZES = (32, 64), (256, 96), (48, 640)  # samples and widths of the small layers
RADII = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99)


class Conv(nn.Module):
    """norm(relu(z + norm(x + K2 norm(relu(K1 z))))), a residual block."""

    def __init__(self, channels: int, groups: int = 4) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(groups, channels) for _ in range(3))
        for conv in (self.first, self.second):
            nn.init.normal_(conv.weight, 0, 0.01)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        y = self.norms[0](functional.relu(self.first(z)))
        return self.norms[2](functional.relu(z + self.norms[1](x + self.second(y))))


class Multiscale(nn.Module):
    """Two resolutions that exchange their states."""

    def __init__(self, fine: int, coarse: int) -> None:
        super().__init__()
        self.fine, self.coarse = Conv(fine), Conv(coarse)
        self.down = nn.Conv2d(fine, coarse, 3, 2, 1, bias=False)
        self.up = nn.Conv2d(coarse, fine, 1, bias=False)
        for conv in (self.down, self.up):
            nn.init.normal_(conv.weight, 0, 0.01)

    def forward(self, z: tuple[Tensor, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        fine = self.fine(z[0], x + functional.interpolate(self.up(z[1]), scale_factor=2))
        return fine, self.coarse(z[1], self.down(z[0]))


class Transformer(nn.Module):
    """A post-norm layer."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        parts = self.into(z).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        y = self.norms[0](x + z + self.out(mixed))
        return self.norms[1](y + self.down(functional.gelu(self.up(y))))


class Update(nn.Module):
    """RAFT's: a convolutional GRU on a hidden state, and a flow that it corrects."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(2 + channels, channels, 3, padding=1)
        self.gates = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1)
        self.candidate = nn.Conv2d(2 * channels, channels, 3, padding=1)
        self.head = nn.Conv2d(channels, 2, 3, padding=1)

    def forward(self, state: tuple[Tensor, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        hidden, flow = state
        motion = functional.relu(self.encoder(torch.cat([torch.tanh(flow), x], 1)))
        z, r = self.gates(torch.cat([hidden, motion], 1)).sigmoid().chunk(2, dim=1)
        new = torch.tanh(self.candidate(torch.cat([r * hidden, motion], 1)))
        hidden = (1 - z) * hidden + z * new
        return hidden, 0.5 * flow + self.head(hidden)


class Graph(nn.Module):
    """relu(A z W + x) on a random graph."""

    def __init__(self, nodes: int, width: int) -> None:
        super().__init__()
        edges = (torch.rand(nodes, nodes) < 4 / nodes).float()
        edges = ((edges + edges.T) > 0).float() + torch.eye(nodes)
        scale = edges.sum(1).rsqrt()
        self.register_buffer("adjacency", scale[:, None] * edges * scale)
        weight = torch.randn(width, width)
        self.weight = nn.Parameter(0.9 * weight / torch.linalg.matrix_norm(weight, 2))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        adjacency: Any = self.adjacency
        return functional.relu(adjacency @ z @ self.weight + x)


class Dense(nn.Module):
    """tanh(z W + x), W of a spectral radius."""

    def __init__(self, width: int, radius: float, *, symmetric: bool = False) -> None:
        super().__init__()
        weight = torch.randn(width, width)
        weight = weight + weight.T if symmetric else weight
        norm = torch.linalg.eigvals(weight).abs().max()
        self.weight = nn.Parameter(radius / norm * weight)

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(z @ self.weight + x)


@dataclass
class Case:
    """A cell with its start and its input."""

    cell: nn.Module
    z0: State
    x: Tensor
    coupled: bool = False

    def to(self, device: torch.device) -> Case:
        """The same on a device; the cell's own parameters move."""
        z0 = tree_map(lambda leaf: leaf.to(device), self.z0)
        return replace(self, cell=self.cell.to(device), z0=z0, x=self.x.to(device))


def large() -> dict[str, Case]:
    """The eight cells at random weights, the same at every call."""
    torch.manual_seed(0)
    image, small = torch.randn(8, 16, 32, 32), torch.randn(4, 24, 16, 16)
    text, nodes = torch.randn(8, 64, 64), torch.randn(2000, 32)
    scales = torch.zeros(8, 16, 32, 32), torch.zeros(8, 32, 16, 16)
    cases = {
        "convolution": Case(Conv(16), torch.zeros_like(image), image),
        "transformer": Case(Transformer(64), torch.zeros_like(text), text),
        "multiscale": Case(Multiscale(16, 32), scales, image),
        "flow update": Case(Update(24), (small * 0, small[:, :2] * 0), small),
        "graph": Case(Graph(2000, 32), torch.zeros_like(nodes), nodes, coupled=True),
    }
    for name, radius, symmetric in (
        ("dense 0.9", 0.9, False),
        ("dense 1.3", 1.3, False),
        ("symmetric", 0.95, True),
    ):
        x = 0.3 * torch.randn(32, 1024)
        cases[name] = Case(Dense(1024, radius, symmetric=symmetric), torch.zeros_like(x), x)
    return cases


def small() -> dict[str, Case]:
    """Eighteen tanh layers of three sizes and six spectral radii."""
    cases: dict[str, Case] = {}
    for batch, width in SIZES:
        for radius in RADII:
            torch.manual_seed(width)
            cell, x = Dense(width, radius), 0.3 * torch.randn(batch, width)
            cases[f"tanh {batch}x{width}, radius {radius}"] = Case(cell, torch.zeros_like(x), x)
    return cases


LAYERS = {
    **{
        f"layer-tanh-{batch}x{width}-{radius}": f"tanh {batch}x{width}, radius {radius}"
        for batch, width in SIZES
        for radius in RADII
    },
    **{f"layer-{name}": name for name in ("convolution", "transformer", "graph")},
}
"""The small layers and three of the large ones, by their names as problems of a benchmark."""


def layer(name: str) -> Case:
    """One of `LAYERS`; the graph is a batch of one sample, as every library can solve it."""
    case = (small() if "tanh" in name else large())[LAYERS[name]]
    if case.coupled:
        return replace(case, z0=case.z0[None], x=case.x[None], coupled=False)
    return case
