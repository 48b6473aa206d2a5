"""The direct solve."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import linalg
from equilibria.solve.linear.base import Goal, LinearSolver, Product, measured
from equilibria.solve.loop import Run
from equilibria.solve.rows import Rows, choose, norm
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
    def solve(
        self,
        product: Product,
        g: Rows,
        start: Rows | None = None,
        *,
        rtol: Tensor | None = None,
        budget: Tensor | None = None,
        trust: bool = False,
    ) -> Run:
        goal = Goal(self.atol, self.rtol if rtol is None else rtol, norm(g))
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

        now = measured(product, g, linalg.split(solution, widths))
        finite = now.finite & torch.isfinite(matrix).flatten(1).all(dim=1)
        status = torch.full_like(now.size, int(Status.STALLED), dtype=torch.int8)
        status = torch.where(sound & goal.reached(now), int(Status.CONVERGED), status)
        status = torch.where(finite, status, int(Status.NONFINITE))
        relative = torch.where(finite, now.relative(), math.inf)
        evals = torch.full_like(now.size, entries + 1, dtype=torch.int64)
        if budget is not None:
            able = budget > entries
            guess = [torch.zeros_like(row) for row in g] if start is None else start
            now = replace(now, u=choose(able, now.u, guess))
            status = torch.where(able, status, int(Status.MAX_EVALS))
            evals = torch.where(able, evals, 0)
            relative = torch.where(able, relative, math.inf)
        return Run(now.u, status, evals, relative)
