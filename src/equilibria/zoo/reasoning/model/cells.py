"""Cells that take the input in at every evaluation and normalize the state that they return.

A state has a feature vector at each place, which stays on the sphere |z|^2 = width, wherever an
iteration starts: it can neither die out nor run away, and what an iterate has forgotten of the
input it is told again.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

CellName = Literal["convolution", "attention", "diagonal", "dense"]
"""The cells, as a recipe names them."""

BLOCK = 8
"""Rows of a block of the cell "dense"."""


class ConvolutionalCell(nn.Module):
    """z <- N(z + W relu(K * [z; u])), K of 3 or 3 x 3 places, N the norm over channels.

    Nothing in it depends on the size of an instance. An evaluation moves information by one place.

    Args:
        channels: of the input u.
        width: channels of the state.
        hidden: channels of K.
        space: axes of an instance: 1 for sequences, 2 for grids.
    """

    def __init__(self, channels: int, width: int, hidden: int, space: int) -> None:
        super().__init__()
        convolution = {1: nn.Conv1d, 2: nn.Conv2d}[space]
        self.spread = convolution(width + channels, hidden, 3, padding=1)
        self.mix = convolution(hidden, width, 1)

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        """Return the next state, `(batch, width, *space)`."""
        return normalize(z + self.mix(self.spread(torch.cat((z, u), 1)).relu()))


class AttentionCell(nn.Module):
    """y = N(z + A(z + u)), z <- N(y + W_2 relu(W_1 (y + u))), A attention over all places.

    Args:
        width: features of a place.
        heads: of the attention.
        hidden: features of W_1.
    """

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        """Return the next state, `(batch, width, *space)`."""
        shape = z.shape
        z, u = (x.flatten(2).transpose(1, 2) for x in (z, u))  # (batch, places, width)
        y = normalize(z + self._attend(z + u), -1)
        y = normalize(y + self.contract(self.expand(y + u).relu()), -1)
        return y.transpose(1, 2).reshape(shape)

    def _attend(self, x: Tensor) -> Tensor:
        parts = self.project(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*parts)
        return self.merge(attended.transpose(1, 2).flatten(2))


class LinearRecurrence(nn.Module):
    """h_t = A_t h_(t-1) + b_t, A_t and b_t functions of [z_(t-1); u_t]; z_t = N(W h_t + V u_t).

    For given z it is linear along the sequence, and all times are computed at once by a scan. At
    its fixed point it is a recurrent network that is not linear, z_t a function of h_(t-1), z_(t-1)
    and u_t: `run` computes the same by going through the sequence once. After k evaluations the
    first k places are those of the fixed point, from any start.

    Args:
        width: features of a place, of z and of h.
        dense: A_t is block-diagonal, of blocks of `BLOCK` rows, its norm at most 1; otherwise
            diagonal, with entries between -1 and 1.

    Source: Schone et al. 2025, sec. 3.
    """

    def __init__(self, width: int, *, dense: bool) -> None:
        super().__init__()
        self.block = BLOCK if dense else 1
        self.transition = nn.Linear(2 * width, width * self.block)
        self.input = nn.Linear(2 * width, width)
        self.output = nn.Linear(width, width, bias=False)
        self.skip = nn.Linear(width, width)

    def forward(self, z: Tensor, u: Tensor) -> Tensor:
        """Return the next state, `(batch, width, length)`."""
        before = functional.pad(z, (1, -1))
        a, b = self._coefficients(before.transpose(1, 2), u.transpose(1, 2))
        return self._read(scan(a, b), u.transpose(1, 2)).transpose(1, 2)

    def run(self, u: Tensor) -> Tensor:
        """Return the fixed point by one pass through the sequence, `(batch, width, length)`.

        This is the explicit form of the cell: exact, and as many steps as the sequence is long.
        """
        z = u.new_zeros(u.shape[:2])
        h = z.unflatten(-1, (-1, self.block, 1))
        found = []
        for each in u.unbind(2):
            a, b = self._coefficients(z, each)
            h = a @ h + b
            z = self._read(h, each)
            found.append(z)
        return torch.stack(found, 2)

    def _coefficients(self, z: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """A `(..., blocks, block, block)` and b `(..., blocks, block, 1)`."""
        x = torch.cat((z, u), -1)
        a = self.transition(x).unflatten(-1, (-1, self.block, self.block))
        if self.block == 1:
            a = a.tanh()
        else:
            a = a / a.square().sum((-2, -1), keepdim=True).add(1.0).sqrt()
        return a, self.input(x).unflatten(-1, (-1, self.block, 1))

    def _read(self, h: Tensor, u: Tensor) -> Tensor:
        return normalize(self.output(h.flatten(-3)) + self.skip(u), -1)


def scan(a: Tensor, b: Tensor) -> Tensor:
    """Return h_t = a_t h_(t-1) + b_t, h_0 = 0, along axis 1, in log2(length) steps.

    Args:
        a: `(batch, length, blocks, n, n)`.
        b: `(batch, length, blocks, n, 1)`.
    """
    for k in range(math.ceil(math.log2(max(a.shape[1], 1)))):
        shift = 2**k
        b = torch.cat((b[:, :shift], b[:, shift:] + a[:, shift:] @ b[:, :-shift]), 1)
        a = torch.cat((a[:, :shift], a[:, shift:] @ a[:, :-shift]), 1)
    return b


def normalize(z: Tensor, axis: int = 1) -> Tensor:
    """Return z with mean square 1 along an axis."""
    return z * (z.square().mean(axis, keepdim=True) + 1e-6).rsqrt()
