"""Says of each sample how it goes, and keeps what it is to return."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.rows import Rows, choose, entries, length, relative_by_leaf, replaced, select
from equilibria.solve.solvers.base import Point, Solver, Stepper
from equilibria.solve.status import Status

RUNNING = -1
DIVERGENCE = 1e8  # growth of the residual over its first value that ends a sample
STALL = 0.99  # what must be left of the best residual, at most, after `patience` evaluations
COMPACT_BELOW = 0.85  # share of running samples under which the finished ones leave the batch


class Judge:
    """Says of each sample how it goes, and keeps what it is to return.

    Most evaluations are quiet: every sample that runs has come closer, none has arrived. Then the
    newest iterate is the best of all samples, which takes no copy, and two comparisons have told
    so. Where samples arrive, these alone are touched; only where something goes wrong is every
    sample gone through.

    The samples still in the batch are numbered as in the batch; `full_*` number all samples of the
    solve, and hold those that have finished.
    """

    def __init__(
        self, solver: Solver, stepper: Stepper, z: Rows, *, trace: bool, last: bool, tracked: bool
    ) -> None:
        samples, device, dtype = z[0].shape[0], z[0].device, z[0].dtype
        self.solver = solver
        self.stepper = stepper
        self.last = last
        self.tracked = tracked
        self.evals = 0
        self.spent: Tensor | None = None  # beyond these, where a method spends more
        # Merit: ||f - z|| over what the tolerance measures it by; at `goal` a sample has converged.
        self.goal = 1.0 if solver.atol else solver.rtol
        above = torch.full((samples,), self.goal, dtype=dtype, device=device)
        tiny = torch.finfo(dtype).tiny  # even where the goal is 0
        # Quiet is a merit from `floor` on, and a residual up to `top`: above it one has diverged.
        self.floor = torch.nextafter(above, above + 1).clamp_min_(tiny)
        self.top = above
        self.merit = torch.full_like(above, math.inf)  # of the best iterate
        self.relative = self.merit  # its relative residual
        self.size = self.merit  # ||f - z|| of it, for methods that look around
        self.window: deque[Tensor] = deque(maxlen=solver.patience)  # of the latest best merits
        self.best = z
        self.now, self.now_relative, self.now_merit = z, self.merit, self.merit
        self.left = samples  # how many run; not known where tracked
        self.resting: tuple[Tensor, Rows] | None = None  # who has finished, and where they stay
        self.index: Tensor | None = None  # of the samples in the batch, among all; None: all
        self.full_status = torch.zeros(samples, dtype=torch.int8, device=device)  # CONVERGED
        self.full_evals = torch.zeros(samples, dtype=torch.int64, device=device)
        self.full_residual = torch.full_like(above, math.inf)
        self.full_value: Rows = []
        self.trace: list[Tensor] | None = [] if trace else None
        self.leaf_trace: list[Tensor] = []
        self.full_ritz: Tensor | None = None
        self.full_choices: Tensor | None = None

    # --- judging ---------------------------------------------------------------------------------

    def observe(self, point: Point) -> bool:
        """Judges an evaluated iterate; True when no sample runs any more."""
        solver, size = self.solver, point.size
        self.evals += 1
        if self.stepper.spent is not None:
            spent = torch.where(self.running, self.stepper.spent, 0)
            self.spent = spent if self.spent is None else self.spent + spent
        scale = length([row.detach() for row in point.f])
        merit = relative = size / scale
        if solver.atol:
            absolute = solver.atol * math.sqrt(entries(point.f))  # of the RMS norm
            merit = size / torch.add(scale * solver.rtol, absolute)
        if self.trace is not None:
            self._record(point, scale)
        self.now, self.now_relative, self.now_merit = point.z, relative, merit
        if self.evals == 1:
            self.top = DIVERGENCE * size
        if self._quiet(size, merit):
            self.best, self.merit, self.relative, self.size = point.z, merit, relative, size
            self._remember()
            return False
        calm = self._calm(size, scale)
        relative, merit = self._mended(size, scale, relative, merit, calm)
        self._keep(point, relative, merit)
        stalled = self._stalled()
        self._remember()
        if calm and stalled is None:
            return self._end(merit < self.floor, None)
        return self._settle(size, scale, merit, stalled)

    def _quiet(self, size: Tensor, merit: Tensor) -> bool:
        """Every sample has come closer (or rests), none has arrived, stalled or diverged."""
        if not self._ordinary():
            return False
        ceiling = self.merit
        if len(self.window) == self.window.maxlen:
            ceiling = torch.minimum(ceiling, self.window[0] * STALL)
        inside = torch.clamp(merit, min=self.floor, max=ceiling)
        return private.same(inside, merit) and private.same(torch.minimum(size, self.top), size)

    def _calm(self, size: Tensor, scale: Tensor) -> bool:
        """All is finite, none has diverged: a sample can end by convergence alone, or a stall."""
        if not self._ordinary():
            return False
        finite = torch.add(size, scale, alpha=0.0)  # not a number where the scale is not finite
        return private.same(torch.minimum(finite, self.top), finite)

    def _ordinary(self) -> bool:
        """Not the last evaluation, and counted like any other."""
        within = self.evals < self.solver.max_evals
        return within and self.spent is None and not self.tracked

    def _mended(
        self, size: Tensor, scale: Tensor, relative: Tensor, merit: Tensor, calm: bool
    ) -> tuple[Tensor, Tensor]:
        """0 / 0 is 0: f(z) = z = 0. What is not finite is no merit."""
        mended = torch.nan_to_num(relative, nan=0.0, posinf=math.inf)
        if not calm:
            finite = torch.isfinite(size + scale)
            mended = torch.where(finite, mended, math.inf)
            merit = torch.where(finite, merit, math.inf)
        if not self.solver.atol:
            merit = mended
        self.now_relative, self.now_merit = mended, merit
        return mended, merit

    def _keep(self, point: Point, relative: Tensor, merit: Tensor) -> None:
        """Keeps the best iterate, by reference where all samples improved."""
        better = merit <= self.merit
        if self.last and not self.solver.looks_around:
            # Which iterate is best does not matter; how good it was tells of a stall.
            self.merit = torch.where(better, merit, self.merit)
        elif private.every(better):
            self.best, self.merit, self.relative, self.size = point.z, merit, relative, point.size
        else:
            mix = choose if self.tracked else replaced
            self.best = mix(better, point.z, self.best)
            self.merit = torch.where(better, merit, self.merit)
            self.relative = self.merit
            if self.solver.atol:
                self.relative = torch.where(better, relative, self.relative)
            if self.solver.looks_around:
                self.size = torch.where(better, point.size, self.size)

    def _remember(self) -> None:
        if self.solver.patience is not None:
            self.window.append(self.merit)

    def _stalled(self) -> Tensor | None:
        if len(self.window) != self.window.maxlen:
            return None
        stalled = self.running & (self.merit > STALL * self.window[0])
        return stalled if private.some(stalled) else None

    def _settle(self, size: Tensor, scale: Tensor, merit: Tensor, stalled: Tensor | None) -> bool:
        """Goes through all that can end a sample; of several, the last one named here counts."""
        count = self.evals if self.spent is None else self.evals + self.spent
        over = torch.as_tensor(count >= self.solver.max_evals, device=size.device)
        status = torch.where(over, int(Status.MAX_EVALS), RUNNING)
        if stalled is not None:
            status = torch.where(stalled, int(Status.STALLED), status)
        status = torch.where(size > self.top, int(Status.DIVERGED), status)
        status = torch.where(merit <= self.goal, int(Status.CONVERGED), status)
        finite = torch.isfinite(size + scale)
        status = torch.where(finite, status, int(Status.NONFINITE)).to(torch.int8)
        return self._end(self.running & (status != RUNNING), status)

    # --- samples that end ------------------------------------------------------------------------

    def _end(self, ended: Tensor, status: Tensor | None) -> bool:
        """Keeps what is known of the samples that end here; True when no sample runs any more.

        Args:
            ended: `(samples,)` bool.
            status: `(samples,)`; None: all that end have converged.
        """
        if self.tracked:
            return self._end_tracked(ended, status)
        here = ended.nonzero().flatten()
        if not len(here):
            return False
        at = here if self.index is None else self.index.index_select(0, here)
        value, relative = self.best, self.relative
        if self.last:
            value, relative = self.now, self.now_relative
        self.left -= len(here)
        rows = self._deliver(value, here, at)
        if status is not None:
            self.full_status.index_copy_(0, at, status.index_select(0, here))
        if self.spent is None:
            self.full_evals.index_fill_(0, at, self.evals)
        else:
            self.full_evals.index_copy_(0, at, self.evals + self.spent.index_select(0, here))
        self.full_residual.index_copy_(0, at, relative.index_select(0, here))
        self._look_back(here, at)
        if not self.left:
            return True
        self.floor.index_fill_(0, here, -math.inf)
        self.top.index_fill_(0, here, math.inf)
        if self.resting is not None:
            index, before = self.resting
            here = torch.cat([index, here])
            rows = [torch.cat(pair) for pair in zip(before, rows, strict=True)]
        self.resting = (here, rows)
        return False

    def _deliver(self, value: Rows, here: Tensor, at: Tensor) -> Rows:
        """Writes the answers of samples in their places; returns them."""
        if not self.full_value:
            if not self.left:  # all at once
                self.full_value = value
                return value
            self.full_value = [row.clone() for row in value]
        rows = select(value, here)
        for all_, row in zip(self.full_value, rows, strict=True):
            all_.index_copy_(0, at, row)
        return rows

    def _end_tracked(self, ended: Tensor, status: Tensor | None) -> bool:
        """The same by masks: nothing is written in place, and entries may be hidden by vmap."""
        count = self.evals if self.spent is None else self.evals + self.spent
        relative = self.now_relative if self.last else self.relative
        if status is not None:
            self.full_status = torch.where(ended, status, self.full_status)
        self.full_evals = torch.where(ended, count, self.full_evals)
        self.full_residual = torch.where(ended, relative, self.full_residual)
        self.floor = torch.where(ended, -math.inf, self.floor)
        self.full_value = self.now if self.last else self.best
        return not private.some(self.running)

    def freeze(self, z: Rows, f: Rows) -> Rows:
        """The next iterate of running samples; a finished one rests where it is to stay.

        Args:
            z: the method's next iterate.
            f: what the function has returned. It may be somebody's, so it is never written to.
        """
        if self.tracked:
            return choose(self.running, z, self.now if self.last else self.best)
        if self.resting is None:
            return z
        index, rows = self.resting
        return [
            new.index_copy(0, index, at) if new is image else new.index_copy_(0, index, at)
            for new, image, at in zip(z, f, rows, strict=True)
        ]

    def around(self, point: Point) -> Point:
        """The point, with what methods that look around want to know."""
        return replace(
            point,
            best=self.best,
            best_size=self.size,
            running=self.running,
            merit=self.now_merit / self.goal,
        )

    @property
    def running(self) -> Tensor:
        """Which samples of the batch have not finished."""
        return self.floor > 0

    @property
    def all_running(self) -> bool:
        """Has none of the samples in the batch finished?"""
        return not self.tracked and self.left == self.floor.shape[0]

    def few_running(self) -> bool:
        """Does it pay to drop the samples that have finished?"""
        return self.resting is not None and self.left <= COMPACT_BELOW * self.floor.numel()

    def retire(self) -> Tensor:
        """Drops the samples that have finished; returns which stay."""
        keep = self.running.nonzero().flatten()
        self.index = keep if self.index is None else self.index.index_select(0, keep)
        for name in ("floor", "top", "merit", "relative", "size"):
            setattr(self, name, getattr(self, name).index_select(0, keep))
        if self.spent is not None:
            self.spent = self.spent.index_select(0, keep)
        if self.window:
            kept = torch.stack(tuple(self.window)).index_select(1, keep)
            self.window = deque(kept.unbind(0), maxlen=self.window.maxlen)
        self.best = select(self.best, keep)
        self.resting = None
        return keep

    def among_all(self, z: Rows) -> Rows:
        """Rows of the samples in the batch, with the values of those that have left."""
        if self.index is None:
            return z
        place = self.index
        return [
            all_.index_copy(0, place, row) for all_, row in zip(self.full_value, z, strict=True)
        ]

    # --- for who wants to know more --------------------------------------------------------------

    def _look_back(self, here: Tensor, at: Tensor) -> None:
        """What the method knows of the samples that end here."""
        if self.trace is not None:
            self.full_ritz = self._noted(self.full_ritz, self.stepper.ritz(), here, at)
        self.full_choices = self._noted(self.full_choices, self.stepper.choices(), here, at)

    def _noted(
        self, table: Tensor | None, rows: Tensor | None, here: Tensor, at: Tensor
    ) -> Tensor | None:
        if rows is None:
            return table
        nothing = torch.nan if rows.is_complex() else 0
        width = rows.shape[1]
        if table is None:
            table = rows.new_full((self.full_status.numel(), width), nothing)
        found = torch.nn.functional.pad(
            rows.index_select(0, here), (0, max(0, table.shape[1] - width)), value=nothing
        )
        table = torch.nn.functional.pad(table, (0, found.shape[1] - table.shape[1]), value=nothing)
        return table.index_copy(0, at, found)

    def _record(self, point: Point, scale: Tensor) -> None:
        assert self.trace is not None
        tiny = torch.finfo(scale.dtype).tiny
        finite = torch.isfinite(point.size + scale)
        relative = torch.where(finite, point.size / (scale + tiny), math.inf)
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
