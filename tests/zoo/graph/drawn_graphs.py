"""Small graphs for tests: random ones, a chain, and a batch of three of different sizes."""

import torch
from torch import Tensor

import equilibria as eq

TIGHT = {"layer": {"solver": eq.Anderson(rtol=1e-12, max_evals=500, per_row=True)}}
NODES = 30
CHAIN = torch.tensor([[0, 1, 2], [1, 2, 3]])


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def edges_of(nodes: int, count: int, seed: int, undirected: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(0, nodes, (2, count), generator=generator)
    return torch.cat([found, found.flip(0)], 1).unique(dim=1) if undirected else found.unique(dim=1)


def uneven() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three directed, weighted graphs of 4, 9 and 2 nodes; the second has an isolated node."""
    sizes, parts, begin = (4, 9, 2), [], 0
    for size in sizes:
        found = torch.randint(0, max(size - 1, 2), (2, 3 * size), generator=draw(size))
        parts.append(found.unique(dim=1) + begin)
        begin += size
    edge_index = torch.cat(parts, 1)
    weight = torch.rand(edge_index.shape[1], generator=draw(1), dtype=torch.float64) + 0.1
    x = torch.randn(begin, 5, generator=draw(2), dtype=torch.float64)
    return x, edge_index, weight, torch.arange(3).repeat_interleave(torch.tensor(sizes))


def alone(number: int) -> tuple[Tensor, Tensor, Tensor, None]:
    """One of them."""
    x, edge_index, weight, batch = uneven()
    rows = batch == number
    mine = rows[edge_index[0]]
    return x[rows], edge_index[:, mine] - int(rows.nonzero()[0]), weight[mine], None
