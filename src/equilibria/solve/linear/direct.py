"""The direct solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import linalg
from equilibria.solve.linear.base import Goal, LinearSolver, Measured, Product
from equilibria.solve.rows import Rows


@dataclass(frozen=True, kw_only=True)
class DirectSolve(LinearSolver):
    """Builds A column by column and factorises I - A.

    One product an entry of a sample, and one to measure the residual; memory: the square of a
    sample's entries. For small systems and as a reference. A singular I - A is reported as STALLED
    (or NONFINITE), never passed off as solved.

    Raises:
        ValueError: on solving, when a sample has more entries than `max_evals` allows products.
    """

    max_evals: int = 4096
    direct: ClassVar[bool] = True

    @override
    def min_products(self, entries: int) -> int:
        if entries + 1 > self.max_evals:
            raise ValueError(
                f"DirectSolve(max_evals={self.max_evals}) can't solve a system of {entries} "
                f"entries a sample: it takes {entries + 1} products. Use GMRES, or raise max_evals"
            )
        return entries

    @override
    def cycle(
        self, product: Product, start: Measured, goal: Goal, budget: Tensor, active: Tensor
    ) -> tuple[Rows, Tensor, Tensor]:
        g = start.residual  # of which the correction is found
        widths = [row.shape[1] for row in g]
        samples, entries = g[0].shape[0], sum(widths)
        columns: list[Tensor] = []
        for entry in range(entries):
            unit = torch.zeros(samples, entries, dtype=g[0].dtype, device=g[0].device)
            unit[:, entry] = 1
            columns.append(torch.cat(product(linalg.split(unit, widths)), dim=1))
        matrix = torch.stack(columns, dim=2)
        system = torch.eye(entries, dtype=matrix.dtype, device=matrix.device) - matrix
        change = linalg.solve(system, torch.cat(g, dim=1))
        usable = torch.isfinite(change).all(dim=1)
        change = linalg.split(torch.where(usable.unsqueeze(1), change, 0.0), widths)
        u = [a + b for a, b in zip(start.u, change, strict=True)]
        return u, entries * active, torch.where(usable, 0.0, start.size)
