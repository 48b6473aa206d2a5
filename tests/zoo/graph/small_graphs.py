"""A small equilibrium network for graphs, and graphs that it can tell apart."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equilibria import nn as layers
from equilibria.run import models
from equilibria.run.models import ClassifierConfig, EquilibriumModel, Prediction
from equilibria.run.registry import find
from equilibria.solve import shared


class Cell(nn.Module):
    """z <- tanh(W mean over neighbours of z + u)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        with torch.no_grad():
            self.linear.weight.copy_(0.5 * torch.eye(width))

    def forward(self, z: Tensor, u: Tensor, edge_index: Tensor) -> Tensor:
        sender, receiver = edge_index
        degree = receiver.bincount(minlength=len(z)).clamp(min=1)[:, None]
        mean = torch.zeros_like(z).index_add(0, receiver, z[sender]) / degree
        return torch.tanh(self.linear(mean) + u)


class GraphModel(EquilibriumModel):
    def __init__(self, config: "GraphConfig", **layer: Any) -> None:
        super().__init__()
        assert config.shape is not None and config.classes is not None
        self.level = config.level
        self.stem = nn.Linear(config.shape[0], config.width)
        self.head = nn.Linear(config.width, config.classes)
        self.deq = layers.DEQ(Cell(config.width), coupled=True, **layer)
        self.batch: Tensor | None = None

    def inject(self, x: Any) -> tuple[Any, ...]:
        self.batch = x[3]
        return self.stem(x[0]), shared(x[1])

    def readout(self, z: Tensor) -> Tensor:
        if self.level == "node":
            return self.head(z)
        batch = z.new_zeros(len(z), dtype=torch.int64) if self.batch is None else self.batch
        count = int(batch.max()) + 1
        total = z.new_zeros(count, z.shape[1]).index_add(0, batch, z)
        return self.head(total / batch.bincount(minlength=count)[:, None])

    def forward(self, x: Any, *, carry: Any = None, **options: Any) -> Prediction:
        operands = self.inject(x)
        coupled = True if self.batch is None else self.batch
        solution = self.deq(*operands, coupled=coupled, **options)
        return Prediction(self.readout(solution.value), (solution,))


@dataclass(frozen=True, kw_only=True)
class GraphConfig(ClassifierConfig):
    """A graph network.

    Args:
        shape: (features,) of a node.
        classes: number of outputs.
        level: what has classes, "node" or "graph".
        width: of the state.
    """

    shape: tuple[int, ...] | None = None
    classes: int | None = None
    level: str | None = None
    width: int = 8

    def build(self, **layer: Any) -> GraphModel:
        return GraphModel(self, **layer)


@pytest.fixture
def tiny() -> Iterator[None]:
    """The model, registered for the time of a test."""
    models.register("tiny-graph", GraphConfig)
    yield
    del find("models")["tiny-graph"]


def two_rings(path: Path, nodes: int = 30, *, seed: int = 0, **more: Any) -> Path:
    """Two rings of nodes whose features hardly tell which ring they are on."""
    draw = np.random.default_rng(seed)
    there, y = np.arange(2 * nodes), np.arange(2 * nodes) // nodes
    following = y * nodes + (there + 1) % nodes
    x = draw.normal(size=(2 * nodes, 3)) + 1.5 * np.eye(2, 3)[y]
    edges = np.stack([np.r_[there, following], np.r_[following, there]])
    np.savez(path, **{"x": x, "edge_index": edges, "y": y, **more})
    return path


def write_molecules(folder: Path, name: str = "mine", count: int = 60) -> Path:
    """Rings of odd class have three of a kind of node, others one."""
    folder.mkdir()
    edges, owner, kinds = [], [], []
    for graph in range(count):
        size, first = 4 + graph % 3, len(owner) + 1
        owner += [graph + 1] * size
        kinds += [1 if k < (3 if graph % 2 else 1) else 0 for k in range(size)]
        for k in range(size):
            pair = first + k, first + (k + 1) % size
            edges += [pair, pair[::-1]]
    parts = {
        "A": [f"{i}, {j}" for i, j in edges],
        "graph_indicator": owner,
        "graph_labels": [graph % 2 for graph in range(count)],
        "node_labels": kinds,
    }
    for part, lines in parts.items():
        (folder / f"{name}_{part}.txt").write_text("\n".join(map(str, lines)) + "\n")
    return folder
