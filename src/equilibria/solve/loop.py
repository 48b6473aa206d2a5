"""The one loop that all forward solvers share.

Evaluating, counting, judging each sample, keeping the best iterate and freezing what has finished
stand here once; a solver contributes its next iterate.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.rows import Rows, choose, norm, relative_by_leaf, select, subtract
from equilibria.solve.solvers.base import Point, Solver
from equilibria.solve.status import Status

RUNNING = -1
DIVERGENCE = 1e8  # growth of the residual over its first value that ends a sample
STALL = 0.99  # what must be left of the best residual, at most, after `patience` evaluations
COMPACT_BELOW = 0.75  # share of running samples under which the finished ones leave the batch


@dataclass(frozen=True)
class Run:
    """The outcome of a solve, one entry a sample."""

    value: Rows
    status: Tensor
    evals: Tensor
    residual: Tensor
    trace: Tensor | None
    leaf_trace: Tensor | None
    states: tuple[Rows, ...]


def iterate(
    solver: Solver,
    evaluate: Callable[[Rows], Rows],
    z: Rows,
    f: Rows | None = None,
    *,
    trace: bool = False,
    states: tuple[int, ...] = (),
    tracked: bool = False,
    last: bool = False,
    leave: Callable[[Tensor], None] | None = None,
) -> Run:
    """Iterates until every sample has finished.

    Args:
        evaluate: f on rows.
        z: the start.
        f: f(z), where the caller knows it; it counts as the first evaluation.
        trace: record the residual after each evaluation.
        states: evaluations after which the iterate is recorded.
        tracked: autograd follows the iteration.
        last: the value is the last iterate, not the best.
        leave: called with the samples to keep when finished ones leave the batch, so that
            `evaluate` can drop them too; None: they stay, frozen.
    """
    judge = _Judge(solver, z, trace, last, {k for k in states if k > 0})
    recorded = {0: z}
    stepper = solver.start(tracked)
    while True:
        point = _evaluated(z, evaluate(z) if f is None else f)
        f = None
        if judge.observe(point):
            break
        if leave is not None and judge.few_running():
            index = judge.retire()
            leave(index)
            stepper.select(index)
            point = point.select(index)
        z = judge.freeze(stepper.step(point))
        if judge.evals in judge.wanted:
            recorded[judge.evals] = judge.among_all(z)
    value = judge.full_value
    return Run(
        value,
        judge.full_status,
        judge.full_evals,
        judge.full_residual,
        *judge.traces(),
        tuple(recorded.get(k, value) for k in states),
    )


def _evaluated(z: Rows, f: Rows) -> Point:
    residual = subtract(f, z)
    return Point(z, f, residual, norm([row.detach() for row in residual]))


class _Judge:
    """Says of each sample how it goes, and keeps what it is to return.

    The samples still in the batch are numbered as in the batch; `full_*` number all samples of the
    solve. The two are the same until the first finished sample leaves.
    """

    def __init__(self, solver: Solver, z: Rows, trace: bool, last: bool, wanted: set[int]) -> None:
        samples, device = z[0].shape[0], z[0].device
        self.solver = solver
        self.last = last
        self.wanted = wanted
        self.evals = 0
        self.tiny = torch.finfo(z[0].dtype).tiny
        self.status = torch.full((samples,), RUNNING, dtype=torch.int8, device=device)
        self.counts = torch.zeros(samples, dtype=torch.int64, device=device)
        self.residual = torch.full((samples,), math.inf, dtype=z[0].dtype, device=device)
        self.last_residual = self.residual
        self.merit = self.residual
        self.first = self.residual
        self.running = torch.ones(samples, dtype=torch.bool, device=device)
        self.all_running = True
        self.window: deque[Tensor] = deque(maxlen=solver.patience)
        self.best = z
        self.now = z
        self.index: Tensor | None = None  # of the samples in the batch, among all; None: all
        self.full_status, self.full_evals = self.status, self.counts
        self.full_residual, self.full_value = self.residual, z
        self.trace: list[Tensor] | None = [] if trace else None
        self.leaf_trace: list[Tensor] = []

    def observe(self, point: Point) -> bool:
        """Judges an evaluated iterate; True when no sample runs any more."""
        solver = self.solver
        self.evals += 1
        self.now = point.z
        size = point.size
        scale = norm([row.detach() for row in point.f])
        finite = torch.isfinite(size + scale)
        relative = torch.where(finite, size / (scale + self.tiny), math.inf)
        self._record(point, relative)
        if self.evals == 1:
            self.first = size
        self.counts = self.counts + self.running

        done = finite & (size <= solver.atol + solver.rtol * scale)
        # What the tolerance is about: near a solution 0 the relative residual need not fall at all.
        merit = relative
        if solver.atol:
            merit = torch.where(finite, size / (solver.atol + solver.rtol * scale), math.inf)
        better = merit < self.merit
        if not self.all_running:
            better = better & self.running
        self._keep(point, relative, merit, better)

        status = torch.where(done, int(Status.CONVERGED), self.status)
        diverged = size > DIVERGENCE * self.first
        status = torch.where(finite & diverged, int(Status.DIVERGED), status)
        status = torch.where(finite, status, int(Status.NONFINITE))
        if solver.patience is not None and self.evals > solver.patience:
            stalled = (status == RUNNING) & (self.merit > STALL * self.window[0])
            status = torch.where(stalled, int(Status.STALLED), status)
        if solver.patience is not None:
            self.window.append(self.merit)
        if self.evals >= solver.max_evals:
            status = torch.where(status == RUNNING, int(Status.MAX_EVALS), status)
        self.status = status if self.all_running else torch.where(self.running, status, self.status)
        self.last_residual = torch.where(self.running, relative, self.last_residual)
        self.running = self.status == RUNNING
        self.all_running = private.every(self.running)
        finished = not self.all_running and not private.some(self.running)
        if finished:
            self._store()
        return finished

    def _keep(self, point: Point, relative: Tensor, merit: Tensor, better: Tensor) -> None:
        """Keeps the best iterate, by reference where all samples improved."""
        if private.every(better):
            self.best, self.residual, self.merit = point.z, relative, merit
        elif private.some(better):
            self.best = choose(better, point.z, self.best)
            self.residual = torch.where(better, relative, self.residual)
            self.merit = torch.where(better, merit, self.merit)

    def freeze(self, z: Rows) -> Rows:
        """The next iterate of running samples; a finished one rests where it is to stay."""
        if self.all_running:
            return z
        return choose(self.running, z, self.now if self.last else self.best)

    def few_running(self) -> bool:
        """Does it pay to drop the samples that have finished?"""
        if self.all_running:
            return False
        return int(self.running.sum()) <= COMPACT_BELOW * self.running.numel()

    def retire(self) -> Tensor:
        """Stores the finished samples and drops them; returns which stay."""
        self._store()
        keep = self.running.nonzero().flatten()
        self.index = keep if self.index is None else self.index.index_select(0, keep)
        self.status = self.status.index_select(0, keep)
        self.counts = self.counts.index_select(0, keep)
        self.residual = self.residual.index_select(0, keep)
        self.last_residual = self.last_residual.index_select(0, keep)
        self.merit = self.merit.index_select(0, keep)
        self.first = self.first.index_select(0, keep)
        self.running = self.running.index_select(0, keep)
        self.all_running = True
        self.window = deque(
            (row.index_select(0, keep) for row in self.window), maxlen=self.window.maxlen
        )
        self.best = select(self.best, keep)
        self.now = select(self.now, keep)
        return keep

    def _store(self) -> None:
        """Writes what is known of the samples in the batch among all."""
        value = self.now if self.last else self.best
        residual = self.last_residual if self.last else self.residual
        if self.index is None:
            self.full_status, self.full_evals = self.status, self.counts
            self.full_residual, self.full_value = residual, value
            return
        place = self.index
        self.full_status = self.full_status.index_copy(0, place, self.status)
        self.full_evals = self.full_evals.index_copy(0, place, self.counts)
        self.full_residual = self.full_residual.index_copy(0, place, residual)
        self.full_value = self.among_all(value)

    def among_all(self, z: Rows) -> Rows:
        """Rows of the samples in the batch, with the values of those that have left."""
        if self.index is None:
            return z
        place = self.index
        return [
            all_.index_copy(0, place, row) for all_, row in zip(self.full_value, z, strict=True)
        ]

    def _record(self, point: Point, relative: Tensor) -> None:
        if self.trace is None:
            return
        each = relative_by_leaf(
            [row.detach() for row in point.residual], [row.detach() for row in point.f]
        )
        relative = torch.where(self.running, relative, math.nan)
        each = torch.where(self.running, each, math.nan)
        if self.index is not None:
            samples = self.full_status.numel()
            relative = relative.new_full((samples,), math.nan).index_copy(0, self.index, relative)
            empty = each.new_full((each.shape[0], samples), math.nan)
            each = empty.index_copy(1, self.index, each)
        self.trace.append(relative)
        self.leaf_trace.append(each)

    def traces(self) -> tuple[Tensor | None, Tensor | None]:
        if self.trace is None:
            return None, None
        return torch.stack(self.trace), torch.stack(self.leaf_trace)
