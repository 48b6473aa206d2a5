"""Small smooth maps in float64 whose derivatives the tests check.

There is a case for each way in which a tensor can reach f.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from problems import normal, with_norm
from torch import Tensor, nn

import equilibria as eq

WIDTH = 3
BATCH = 2


def start() -> Tensor:
    """z0, (batch, width)."""
    return torch.zeros(BATCH, WIDTH, dtype=torch.float64)


def leaves(*shapes: tuple[int, ...], seed: int = 0, scale: float = 0.5) -> tuple[Tensor, ...]:
    """Leaf tensors that require a gradient."""
    return tuple(
        (scale * normal(*shape, seed=seed + i)).requires_grad_() for i, shape in enumerate(shapes)
    )


def cell(z: Tensor, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """tanh(W z + x) + b sin z: smooth, and no derivative of it vanishes."""
    return torch.tanh(z @ w.T + x) + 0.1 * b * torch.sin(z)


class Module(nn.Module):
    """A cell with parameters, one of them a weight that is normalised outside f."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
        self.gain = nn.Parameter(normal(WIDTH, seed=50).abs())
        with torch.no_grad():
            self.linear.weight.copy_(with_norm(0.7, WIDTH, seed=51))
            self.linear.bias.copy_(normal(WIDTH, seed=52))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(z) + x) * torch.sigmoid(self.gain)


class Gated(nn.Module):
    """A cell in float32, of width 8, for torch's compiler."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)
        with torch.no_grad():
            for i, p in enumerate(self.parameters()):
                p.copy_(0.15 * normal(*p.shape, seed=i))

    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        return torch.tanh(self.b(torch.relu(self.a(z)) * torch.sigmoid(z)) + x)


@dataclass(frozen=True)
class Case:
    """A value as a function of tensors, through a fixed point.

    Attributes:
        inputs: Leaf tensors of which the value is a function.
        build: From these: f, z0 and the operands.
    """

    inputs: tuple[Tensor, ...]
    build: Callable[..., tuple[Callable[..., Any], Any, tuple[Any, ...]]]


def operands_case() -> Case:
    """All tensors are operands; those that samples share are passed through eq.shared."""
    x, w, b = leaves((BATCH, WIDTH), (WIDTH, WIDTH), (WIDTH,))
    return Case((x, w, b), lambda x, w, b: (cell, start(), (x, eq.shared(w), eq.shared(b))))


def tree_operands_case() -> Case:
    """Operands are trees, one of them shared."""
    x, w, b = leaves((BATCH, WIDTH), (WIDTH, WIDTH), (WIDTH,))

    def f(z, operand, weights):
        return cell(z, operand["x"][0], weights["w"], weights["b"])

    return Case((x, w, b), lambda x, w, b: (f, start(), ({"x": [x]}, eq.shared({"w": w, "b": b}))))


def leaf_case() -> Case:
    """Leaf tensors that f closes over."""
    w, b = leaves((WIDTH, WIDTH), (WIDTH,))
    x = normal(BATCH, WIDTH, seed=9)
    return Case((w, b), lambda w, b: (lambda z: cell(z, x, w, b), start(), ()))


def history_case() -> Case:
    """Tensors with a history that f closes over: w = g v / |v|, computed outside f."""
    v, g, x = leaves((WIDTH, WIDTH), (WIDTH, 1), (BATCH, WIDTH))

    def build(v: Tensor, g: Tensor, x: Tensor):
        w = g * v / v.norm(dim=1, keepdim=True)
        injected = torch.sin(x)
        return lambda z: cell(z, injected, w, w[0]), start(), ()

    return Case((v, g, x), build)


def mixed_case() -> Case:
    """One leaf reaches f as an operand, as a closed-over leaf and through a history at once."""
    (x,) = leaves((BATCH, WIDTH))
    w = with_norm(0.6, WIDTH, seed=3)

    def build(x: Tensor):
        cosine = torch.cos(x)
        return lambda z, y: cell(z, y + 0.3 * x, w, cosine), start(), (torch.exp(0.1 * x),)

    return Case((x,), build)


def tree_case() -> Case:
    """The state is a tree."""
    x, w = leaves((BATCH, WIDTH), (WIDTH, WIDTH), scale=0.4)

    def f(z, x):
        vector, (number,) = z["vector"], z["more"]
        return {
            "vector": torch.tanh(vector @ w.T + x) * (1 + 0.2 * number[:, None]),
            "more": (0.4 * torch.sin(vector.sum(1)) + 0.1 * number,),
        }

    def build(x: Tensor, _: Tensor):
        z0 = {"vector": start(), "more": (torch.zeros(BATCH, dtype=torch.float64),)}
        return f, z0, (x,)

    # w is closed over as the leaf itself.
    return Case((x, w), build)


CASES: dict[str, Callable[[], Case]] = {
    "operands": operands_case,
    "operand_trees": tree_operands_case,
    "closed_leaves": leaf_case,
    "closed_history": history_case,
    "all_ways_at_once": mixed_case,
    "tree_state": tree_case,
}
