"""What keeps an implicit graph layer well posed: bounds, restored after each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from equilibria.zoo.graph.model.edges import checked, plain

__all__ = ["constrain_", "constrain_after", "perron_radius", "project_rows_"]


@torch.no_grad()
def project_rows_(weight: Tensor, bound: float) -> Tensor:
    """Moves each row, in place, to the nearest point of the l1 ball ||row||_1 <= bound.

    Then ||weight||_inf <= bound. Rows inside the ball stay bit for bit.

    papers: Gu et al. 2020, eq. 8; Duchi et al. 2008, fig. 1.

    Args:
        weight: `(rows, columns)`.
        bound: >= 0.
    """
    if weight.is_meta:
        return weight
    outside = weight.abs().sum(1) > bound
    if not bool(outside.any()):
        return weight
    rows = weight[outside]
    size = rows.abs().sort(dim=1, descending=True).values
    excess = size.cumsum(1) - bound
    count = torch.arange(1, rows.shape[1] + 1, device=rows.device, dtype=rows.dtype)
    kept = (size * count > excess).sum(1, keepdim=True).clamp_min(1)
    shrink = excess.gather(1, kept - 1) / kept
    near = rows.sign() * (rows.abs() - shrink).clamp_min(0)
    # Rounding may leave a row just outside.
    near = near * (bound / near.abs().sum(1, keepdim=True).clamp_min(bound or 1.0)).clamp_max(1)
    weight[outside] = near
    return weight


@torch.no_grad()
def perron_radius(
    edge_index: Tensor,
    edge_weight: Tensor | None = None,
    nodes: int | None = None,
    *,
    rtol: float = 1e-6,
    max_products: int = 10_000,
) -> float:
    """An upper bound of lambda_PF(|A|), the spectral radius of a non-negative matrix.

    By power iteration with A + c I, c > 0, which makes all that oscillates decay: for any positive
    v the radius of A is at most max_i ((A + c I) v)_i / v_i - c (Collatz and Wielandt), whether A
    is connected or not. The bound falls towards the radius; of a nilpotent A, such as a directed
    chain, it falls slowly, and is sound wherever it is stopped.

    Args:
        edge_index: `(2, edges)` int64, or a sparse adj_t `(nodes, nodes)`.
        edge_weight: `(edges,)`, >= 0; None for 1.
        nodes: how many there are; None for as many as have edges.
        rtol: relative to the largest sum of the weights that a node receives; stop when the bound
            falls by less in ten products.
        max_products: at most.
    """
    edge_index = plain(edge_index)
    if nodes is None and edge_index.layout is not torch.strided:
        nodes = edge_index.shape[0]
    if nodes is None:
        nodes = int(edge_index.max()) + 1 if edge_index.numel() else 1
    like = torch.zeros(nodes, 1, dtype=torch.float64, device=edge_index.device)
    weight = None if edge_weight is None else edge_weight.detach().double()
    edges, _ = checked(like, edge_index, weight)
    v = torch.ones_like(like)
    largest = float(edges.multiply(v, False).max())
    shift, bound, before = 0.5 * largest, largest, largest
    for product in range(1, max_products + 1):
        image = edges.multiply(v, False) + shift * v
        bound = min(bound, float((image / v).max()) - shift)
        v = (image / image.max()).clamp_min(1e-200)
        if product % 10 == 0:
            if before - bound <= rtol * largest:
                break
            before = bound
    return max(bound, 0.0)


@torch.no_grad()
def constrain_(module: nn.Module) -> None:
    """Restores the bounds of all layers inside that have any, in place."""
    for part in module.modules():
        project: Any = getattr(part, "project_", None)
        if callable(project):
            project()


def constrain_after(optimizer: torch.optim.Optimizer, module: nn.Module) -> Any:
    """Restores the bounds of a module's layers after every step of an optimiser.

    Call it once, after both have been made. The trainer of this package does so by itself.

    Returns:
        torch's handle, whose `remove()` ends it.

    Raises:
        TypeError: the optimiser is none.
    """

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer: expected one of torch.optim, got {type(optimizer).__name__}")

    def after(*_: Any) -> None:
        constrain_(module)

    return optimizer.register_step_post_hook(after)
