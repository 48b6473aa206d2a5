"""A model with an equilibrium layer, for torch.compile."""

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

import equilibria as eq


class Cell(nn.Module):
    """Two matrix products with elementwise work between them, which a compiler fuses."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)
        with torch.no_grad():
            for p in self.parameters():
                p.mul_(0.5)

    @override
    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """z, x `(batch, width)` -> z `(batch, width)`."""
        h = self.up(z)
        h = nn.functional.gelu(h) * torch.sigmoid(h) + 0.1 * torch.sin(h)
        h = self.down(h) + x
        return 0.9 * torch.tanh(nn.functional.layer_norm(h, h.shape[-1:]))


class Model(nn.Module):
    """A linear layer, a DEQ and a linear layer, with the same weights for the same width."""

    def __init__(self, width: int, *, compiled: bool = False, **methods: Any) -> None:
        torch.manual_seed(0)
        super().__init__()
        cell: Any = Cell(width)
        self.layer = eq.DEQ(torch.compile(cell) if compiled else cell, **methods)
        self.before, self.after = nn.Linear(width, width), nn.Linear(width, 1)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """x `(batch, width)` -> `(batch, 1)`."""
        return self.after(self.layer(torch.relu(self.before(x))).value)
