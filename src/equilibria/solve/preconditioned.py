"""Linear solves with a preconditioner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from equilibria.solve.judge import RUNNING, STALL
from equilibria.solve.linear.base import Goal, LinearSolver, Product, measured
from equilibria.solve.loop import Run
from equilibria.solve.rows import Rows, add_scaled, norm, subtract
from equilibria.solve.status import Status

SAFETY = 0.9  # share of the tolerance that a solve aims at, as its estimate of it drifts


def solve_preconditioned(
    linear: LinearSolver,
    product: Product,
    apply: Callable[[Rows], Rows],
    g: Rows,
    start: Rows | None = None,
    rtol: Tensor | None = None,
) -> Run:
    """Solves u = A u + g from the right: r = (I - A) M y, then u + M y, r what u leaves.

    Each round measures r anew and goes on from it, so the outcome is as honest as without M.

    Args:
        apply: M, which approximates (I - A)^-1.
        rtol: `(samples,)`, in place of the solver's.
    """
    u = [torch.zeros_like(row) for row in g] if start is None else start
    size = scale = norm(g)
    goal = Goal(linear.atol, linear.rtol if rtol is None else rtol, size)
    residual, evals = g, torch.zeros_like(size, dtype=torch.int64)
    if start is not None:
        now = measured(product, g, u)
        residual, size, scale, evals = now.residual, now.size, now.scale, evals + 1
    inner = replace(linear, rtol=0.0, atol=SAFETY)
    status = torch.full_like(size, RUNNING, dtype=torch.int8)

    def corrected(y: Rows) -> Rows:
        found = apply(y)
        return add_scaled(subtract(y, found), 1.0, product(found))

    while True:
        limit = goal.limit(scale)
        reached = size <= limit
        finite = torch.isfinite(size + scale)
        budget = linear.max_evals - evals - 1
        running = status == RUNNING
        status = torch.where(running & (budget < 1), int(Status.MAX_EVALS), status)
        status = torch.where(running & ~finite, int(Status.NONFINITE), status)
        status = torch.where(running & reached, int(Status.CONVERGED), status)
        running = status == RUNNING
        if not bool(running.any()):
            break
        # Out of reach, where nothing is tolerated: then all digits there are.
        aim = torch.maximum(limit, torch.finfo(size.dtype).eps * size)
        unit = torch.where(running, aim, 1.0).unsqueeze(1)
        scaled = [torch.where(running.unsqueeze(1), row / unit, 0.0) for row in residual]
        run = inner.solve(corrected, scaled, budget=torch.where(running, budget, 0), trust=True)
        change = [row * unit for row in apply(run.value)]
        proposal = add_scaled(u, running.to(size.dtype), change)
        now = measured(product, g, proposal)
        evals = evals + torch.where(running, run.evals + 1, 0)
        better = running & torch.isfinite(now.size + now.scale) & (now.size < size)
        arrived = now.size <= goal.limit(now.scale)
        gained = (now.size < STALL * size) | arrived
        status = torch.where(running & ~gained, int(Status.STALLED), status)
        u = [torch.where(better.unsqueeze(1), a, b) for a, b in zip(proposal, u, strict=True)]
        residual = [
            torch.where(better.unsqueeze(1), a, b)
            for a, b in zip(now.residual, residual, strict=True)
        ]
        size = torch.where(better, now.size, size)
        scale = torch.where(better, now.scale, scale)
    tiny = torch.finfo(size.dtype).tiny
    relative_size = torch.where(finite, size / (scale + tiny), torch.inf)
    return Run(u, status, evals, relative_size)
