"""The direct solve."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import linalg
from equilibria.solve.linear.base import LinearSolver, Product
from equilibria.solve.loop import Run
from equilibria.solve.rows import Rows, norm
from equilibria.solve.status import Status


@dataclass(frozen=True, kw_only=True)
class Dense(LinearSolver):
    """Builds A column by column and factorises I - A.

    One product an entry of a sample, and one to measure the residual; memory: the square of a
    sample's entries. For small systems and as a reference. A singular I - A is reported as STALLED
    (or NONFINITE), never passed off as solved.

    Raises:
        ValueError: on solving, when a sample has more entries than `max_evals` allows products.
    """

    max_evals: int = 4096

    @override
    def solve(self, product: Product, g: Rows, start: Rows | None = None) -> Run:
        widths = [row.shape[1] for row in g]
        samples, entries = g[0].shape[0], sum(widths)
        if entries + 1 > self.max_evals:
            raise ValueError(
                f"Dense(max_evals={self.max_evals}) can't solve a system of {entries} entries a "
                f"sample: it takes {entries + 1} products. Use GMRES, or raise max_evals"
            )
        columns: list[Tensor] = []
        for entry in range(entries):
            unit = torch.zeros(samples, entries, dtype=g[0].dtype, device=g[0].device)
            unit[:, entry] = 1
            columns.append(torch.cat(product(linalg.split(unit, widths)), dim=1))
        matrix = torch.stack(columns, dim=2)
        system = torch.eye(entries, dtype=matrix.dtype, device=matrix.device) - matrix
        right = torch.cat(g, dim=1)
        solution = linalg.solve(system, right)
        sound = torch.isfinite(solution).all(dim=1)
        solution = torch.where(sound.unsqueeze(1), solution, 0.0)

        u = linalg.split(solution, widths)
        image = [a + b for a, b in zip(product(u), g, strict=True)]
        size = norm([a - b for a, b in zip(image, u, strict=True)])
        scale = norm(image)
        finite = torch.isfinite(size + scale) & torch.isfinite(matrix).flatten(1).all(dim=1)
        status = torch.full((samples,), int(Status.STALLED), dtype=torch.int8, device=size.device)
        reached = sound & (size <= self.atol + self.rtol * scale)
        status = torch.where(reached, int(Status.CONVERGED), status)
        status = torch.where(finite, status, int(Status.NONFINITE))
        relative = torch.where(finite, size / (scale + torch.finfo(size.dtype).tiny), math.inf)
        evals = torch.full((samples,), entries + 1, dtype=torch.int64, device=size.device)
        return Run(u, status, evals, relative, None, None, ())
