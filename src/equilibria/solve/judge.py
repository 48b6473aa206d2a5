"""Says of each sample how it goes, and keeps what it is to return."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from equilibria.solve import private, tolerance
from equilibria.solve.growth import ceiling, left
from equilibria.solve.rows import (
    Layout,
    Rows,
    choose,
    faintest,
    length,
    relative_by_leaf,
    scaled_ratio,
    select,
)
from equilibria.solve.solvers.base import Point, Solver, Stepper
from equilibria.solve.status import Status
from equilibria.solve.tolerance import Flat
from equilibria.solve.worst import Worst

RUNNING = -1
# Growth of the residual, over the larger of its first value and of f(z) there, that ends a sample.
# A start of 1e-10 beside an unstable fixed point must pass on its way to an answer of size 1. A
# higher bar costs every sample that does diverge: one that triples is found out after 22
# evaluations, at 1e8 after 18, at 1e16 after 35.
DIVERGENCE = 1e10
STALLED_DIVERGENCE = 1e8  # the same for a sample that would be called stalled
STALL = 0.99  # what must be left of the best residual, at most, after `patience` evaluations
COMPACT_BELOW = 0.85  # share of running samples under which the finished ones leave the batch


class Judge:
    """Says of each sample how it goes, and keeps what it is to return.

    Most evaluations are quiet: every sample that runs has come closer, none has arrived. Then the
    newest iterate is the best of all samples, which takes no copy, and two comparisons have told
    so. Where some fall back or arrive, these alone are touched; only where something is wrong is
    every sample gone through.

    A sample that has finished rests in the batch, at its answer: its residual does not change, it
    falls neither back nor below, and disturbs no quiet (unless f is not a number there).

    The samples still in the batch are numbered as in the batch; `full_*` number all samples of the
    solve.
    """

    def __init__(
        self,
        solver: Solver,
        stepper: Stepper,
        z: Rows,
        *,
        trace: bool,
        last: bool,
        tracked: bool,
        rtol: Tensor | None = None,
        origin: Tensor | None = None,
        layout: Layout | None = None,
    ) -> None:
        samples, device, dtype = z[0].shape[0], z[0].device, z[0].dtype
        self.solver = solver
        self.stepper = stepper
        self.last = last
        self.tracked = tracked
        self.evals = 0
        self.spent: Tensor | None = None  # beyond these, where a method spends more
        # Merit: ||f - z|| over what the tolerance measures it by; at `goal` a sample has converged.
        self.rtol: Flat | Tensor = tolerance.ordered(solver.rtol) if rtol is None else rtol
        self.atol = tolerance.ordered(solver.atol)
        self.layout = layout
        several = solver.per_row and layout is not None and layout.coupled is not False
        self.by_part = several or (solver.by_leaf and layout is not None)
        self.worst: Worst | None = None  # of the newest iterate, where each part has a tolerance
        # Then merit is the relative residual.
        self.plain = rtol is None and not (solver.atol or solver.by_leaf)
        self.alike = self.plain  # and of everybody, until one is held
        self.goal = solver.finest if self.plain else 1.0
        goal = torch.full((samples,), self.goal, dtype=dtype, device=device)
        tiny = torch.finfo(dtype).tiny  # even where the goal is 0
        # A sample runs while its merit is not below `floor`; -inf for one that has finished.
        self.floor = torch.nextafter(goal, goal + 1).clamp_min_(tiny)
        self.top = goal  # a residual above it has diverged
        # The squares of a shorter one may be rounded to nothing.
        self.small = torch.full_like(goal, faintest(dtype))
        self.merit: Tensor = torch.full_like(goal, math.inf)  # of the best iterate
        self.relative: Tensor = self.merit  # its relative residual
        self.size = self.merit  # ||f - z|| of it, for methods that look around
        self.mark = self.merit  # the best merit when last looked for a stall
        self.origin = origin
        self.start = self.merit  # the larger of ||f|| and ||f - z|| at the first evaluation
        self.ceiling = self.merit  # above it f(z) has outgrown the start
        # Whose relative residual was small enough, and nothing else: see `_doubted`.
        self.held = torch.zeros(samples, dtype=torch.bool, device=device)
        self.holding = False  # is there any?
        self.best = z
        self.now, self.now_relative, self.now_merit = z, self.merit, self.merit
        self.left = samples  # how many run; not known where tracked,
        self.stirred = False  # but whether any has ended is
        self.resting: tuple[Tensor, Rows] | None = None  # who has finished, and where they stay
        self.index: Tensor | None = None  # of the samples in the batch, among all; None: all
        self.full_status = torch.zeros(samples, dtype=torch.int8, device=device)  # CONVERGED
        self.full_evals = torch.zeros(samples, dtype=torch.int64, device=device)
        self.full_residual = self.merit
        self.full_value = z
        self.trace: list[Tensor] | None = [] if trace else None
        self.leaf_trace: list[Tensor] = []
        self.full_ritz: Tensor | None = None
        self.full_choices: Tensor | None = None

    # --- judging ---------------------------------------------------------------------------------

    def observe(self, point: Point) -> bool:
        """Judges an evaluated iterate; True when no sample runs any more."""
        size = point.size
        self.evals += 1
        if self.stepper.spent is not None:
            spent = torch.where(self.running, self.stepper.spent, 0)
            self.spent = spent if self.spent is None else self.spent + spent
        scale = length([row.detach() for row in point.f])
        merit, relative = self.measured(point, scale)
        if self.trace is not None:
            self._record(point, scale, relative)
        if self.evals == 1:
            start = torch.maximum(size, scale)
            self.top = DIVERGENCE * start
            self.start = start if self.origin is None else self.origin
            self.ceiling = ceiling(self.start)
        self.now, self.now_relative, self.now_merit = point.z, relative, merit
        if self.ordinary(self.evals):
            if self._quiet(size, merit):
                self.best, self.merit, self.relative, self.size = point.z, merit, relative, size
                return False
            if self._sound(size, scale):
                here = (merit < self.floor).nonzero().flatten()
                if not self._some_grown(scale, here):
                    self._keep(point)
                    return self._end(here, None)
        return self._settle(point, scale)

    def measured(self, point: Point, scale: Tensor) -> tuple[Tensor, Tensor]:
        """The merit of an iterate and its relative residual; `scale` is the length of f(z)."""
        if self.by_part:
            assert self.layout is not None
            self.worst = Worst.of(
                self.layout,
                point.residual,
                point.f,
                self.rtol,
                self.atol,
                per_row=self.solver.per_row,
            )
            assert self.worst is not None
            relative = self.worst.relative
            return relative if self.plain else self.worst.merit, relative
        relative = point.size / scale
        if self.plain:
            return relative, relative
        assert not isinstance(self.rtol, tuple)
        return point.size / torch.add(scale * self.rtol, self._absolute(point)), relative

    def _absolute(self, point: Point) -> float | Tensor:
        """The absolute tolerance as a length: it is one of the RMS norm."""
        whole = tolerance.length(self.atol, [row.shape[1] for row in point.f])
        filled = None if self.layout is None else self.layout.filled
        return whole if filled is None else whole * filled

    def ordinary(self, evals: int) -> bool:
        """Is there nothing to be looked at, after so many evaluations, but the residual?"""
        patience = self.solver.patience
        marked = patience is not None and evals % patience == 1 % patience
        within = 1 < evals < self.solver.max_evals
        plain = not (marked or self.tracked or self.holding)
        return within and plain and self.spent is None

    def pass_over(self, evals: int, point: Point, scale: Tensor) -> None:
        """Takes note of quiet evaluations, the newest of which is `point`."""
        self.evals += evals
        self.best, self.size = point.z, point.size
        self.merit, self.relative = self.measured(point, scale)

    def _quiet(self, size: Tensor, merit: Tensor) -> bool:
        """Has every sample come closer, none arrived, and none diverged?"""
        inside = torch.clamp(merit, min=self.floor, max=self.merit)
        return torch.equal(inside, merit) and torch.equal(torch.minimum(size, self.top), size)

    def _some_grown(self, scale: Tensor, here: Tensor) -> bool:
        """Has f(z) outgrown the start for any of the samples at these places?"""
        if not len(here) or torch.equal(torch.minimum(scale, self.ceiling), scale):
            return False
        return bool((scale > self.ceiling).index_select(0, here).any())

    def _sound(self, size: Tensor, scale: Tensor) -> bool:
        """Is all finite, none too small to be squared, none diverged?"""
        # Not a number where the scale is not finite, or the size is zero: 0 / 0 is no merit.
        size = torch.addcdiv(size, scale, size, value=0.0)
        return torch.equal(torch.clamp(size, min=self.small, max=self.top), size)

    def _keep(self, point: Point) -> None:
        """Keeps the best iterate, by reference where no sample fell back."""
        merit, relative = self.now_merit, self.now_relative
        if self.last and not self.solver.looks_around:
            # Which iterate is best does not matter; how good it was tells of a stall.
            self.merit = torch.minimum(merit, self.merit)
            return
        if self.tracked:
            better = merit <= self.merit
            self.best = choose(better, point.z, self.best)
            self.relative = torch.where(better, relative, self.relative)
            self.size = torch.where(better, point.size, self.size)
            self.merit = torch.where(better, merit, self.merit)
            return
        back = (merit > self.merit).nonzero().flatten()
        if not len(back):
            self.best, self.merit, self.relative, self.size = point.z, merit, relative, point.size
            return
        self.best = _with(point.z, back, self.best)
        if not self.alike:
            self.relative = _with([relative], back, [self.relative])[0]
        if self.solver.looks_around:
            self.size = _with([point.size], back, [self.size])[0]
        self.merit = torch.minimum(merit, self.merit)
        if self.alike:
            self.relative = self.merit

    def _settle(self, point: Point, scale: Tensor) -> bool:
        """Goes through all that can end a sample; of several, the last one named here counts."""
        solver, size = self.solver, point.size
        finite = torch.isfinite(size + scale)
        relative, merit = self.now_relative, self.now_merit
        faint, large = size < self.small, scale > self.ceiling
        if self.holding or private.some(faint | (large & (merit < self.floor))):
            if not self.by_part:  # where every row has been measured in a unit of its own
                relative = torch.where(faint, scaled_ratio(point.residual, point.f), relative)
            if self.plain:
                merit = relative
            if self.holding or private.some(large & (merit < self.floor)):
                merit = self._doubted(merit, point, scale)
        # What is not finite has no merit.
        relative = torch.where(finite, relative, math.inf)
        merit = torch.where(finite, merit, math.inf)
        self.now_relative, self.now_merit = relative, merit
        self._keep(point)

        count = self.evals if self.spent is None else self.evals + self.spent
        over = torch.as_tensor(count >= solver.max_evals, device=size.device)
        status = torch.where(over, int(Status.MAX_EVALS), RUNNING)
        if solver.patience is not None and self.evals % solver.patience == 1 % solver.patience:
            if self.evals > 1:
                stalled = self.merit > STALL * self.mark
                if self.worst is not None:  # a signal on its way is progress that shows no less
                    stalled = stalled & ~self.worst.arriving
                status = torch.where(stalled, int(Status.STALLED), status)
                far = size > STALLED_DIVERGENCE / DIVERGENCE * self.top
                status = torch.where(stalled & far, int(Status.DIVERGED), status)
            self.mark = self.merit
        status = torch.where(size > self.top, int(Status.DIVERGED), status)
        status = torch.where(merit <= self.goal, int(Status.CONVERGED), status)
        status = torch.where(finite, status, int(Status.NONFINITE)).to(torch.int8)
        ended = self.running & (status != RUNNING)
        if self.tracked:
            return self._end_tracked(ended, status)
        return self._end(ended.nonzero().flatten(), status)

    def _doubted(self, merit: Tensor, point: Point, scale: Tensor) -> Tensor:
        """The merit of samples whose relative residual is small, but of a state that has grown.

        One that has not fallen enough is held: from here on the worse of both merits is its own,
        and what it was the best of by the relative residual alone counts no more.
        """
        unit = max(self.goal, torch.finfo(merit.dtype).tiny)
        fallen = unit * left(point.size, scale, self.start, self._absolute(point))
        large = scale > self.ceiling
        held = self.running & (self.held | (large & (merit <= self.goal) & ~(fallen <= unit)))
        first = held & ~self.held
        self.merit = torch.where(first, math.inf, self.merit)
        self.mark = torch.where(first, math.inf, self.mark)
        self.held, self.holding = held, private.some(held)
        self.alike = self.alike and not self.holding
        return torch.where(held & large, torch.maximum(merit, fallen), merit)

    # --- samples that end ------------------------------------------------------------------------

    def _end(self, here: Tensor, status: Tensor | None) -> bool:
        """Keeps what is known of the samples that end here; True when no sample runs any more.

        Args:
            here: their places in the batch.
            status: `(samples,)`; None: all that end have converged.
        """
        if not len(here):
            return False
        at = here if self.index is None else self.index.index_select(0, here)
        self.full_evals.index_fill_(0, at, self.evals)
        if self.spent is not None:
            self.full_evals.index_add_(0, at, self.spent.index_select(0, here))
        if status is not None:
            self.full_status.index_copy_(0, at, status.index_select(0, here))
        if self.last:  # a later evaluation of a sample at rest might find it otherwise
            found = self.now_relative.index_select(0, here)
            self.full_residual = self.full_residual.index_copy(0, at, found)
        self._look_back(here, at)
        self.left -= len(here)
        if not self.left:
            self._store()
            return True
        self.floor.index_fill_(0, here, -math.inf)
        rows = select(self.now if self.last else self.best, here)
        if self.resting is not None:
            index, before = self.resting
            here = torch.cat([index, here])
            rows = [torch.cat(pair) for pair in zip(before, rows, strict=True)]
        self.resting = (here, rows)
        return False

    def _store(self) -> None:
        """Writes what the batch holds among all: of a sample at rest, its answer."""
        value = self.now if self.last else self.best
        self.full_value = self.among_all(value)
        if self.last:
            return
        if self.index is None:
            self.full_residual = self.relative
        else:
            self.full_residual = self.full_residual.index_copy(0, self.index, self.relative)

    def _end_tracked(self, ended: Tensor, status: Tensor) -> bool:
        """The same by masks: nothing is written in place, and entries may be hidden by vmap."""
        count = self.evals if self.spent is None else self.evals + self.spent
        relative = self.now_relative if self.last else self.relative
        self.stirred = self.stirred or private.some(ended)
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
        if self.tracked and self.stirred:
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
            merit=self.now_merit / max(self.goal, torch.finfo(self.merit.dtype).tiny),
        )

    @property
    def running(self) -> Tensor:
        """Which samples of the batch have not finished."""
        return self.floor > 0

    def few_running(self) -> bool:
        """Does it pay to drop the samples that have finished?"""
        return self.resting is not None and self.left <= COMPACT_BELOW * self.floor.numel()

    def retire(self) -> Tensor:
        """Drops the samples that have finished; returns which stay."""
        self._store()
        keep = self.running.nonzero().flatten()
        self.index = keep if self.index is None else self.index.index_select(0, keep)
        for name in (
            "floor",
            "top",
            "small",
            "merit",
            "relative",
            "size",
            "mark",
            "now_merit",
            "held",
            "start",
            "ceiling",
        ):
            setattr(self, name, getattr(self, name).index_select(0, keep))
        if isinstance(self.rtol, Tensor):
            self.rtol = self.rtol.index_select(0, keep)
        if self.spent is not None:
            self.spent = self.spent.index_select(0, keep)
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

    # --- further figures -------------------------------------------------------------------------

    def _look_back(self, here: Tensor, at: Tensor) -> None:
        """What the method knows of the samples that end here."""
        if self.trace is not None:
            self.full_ritz = self._noted(self.full_ritz, self.stepper.ritz(here), at)
        choices = self.stepper.choices()
        if choices is not None:
            self.full_choices = self._noted(self.full_choices, choices.index_select(0, here), at)
        self.stepper.end(here)

    def _noted(self, table: Tensor | None, rows: Tensor | None, at: Tensor) -> Tensor | None:
        """The table of all samples with these rows at `at`."""
        if rows is None:
            return table
        nothing = torch.nan if rows.is_complex() else 0
        width = rows.shape[1]
        if table is None:
            table = rows.new_full((self.full_status.numel(), width), nothing)
        found = torch.nn.functional.pad(rows, (0, max(0, table.shape[1] - width)), value=nothing)
        table = torch.nn.functional.pad(table, (0, found.shape[1] - table.shape[1]), value=nothing)
        return table.index_copy(0, at, found)

    def _record(self, point: Point, scale: Tensor, relative: Tensor) -> None:
        assert self.trace is not None
        tiny = torch.finfo(scale.dtype).tiny
        finite = torch.isfinite(point.size + scale)
        if not self.by_part:
            relative = point.size / (scale + tiny)
        relative = torch.where(finite, relative, math.inf)
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


def _with(rows: Rows, index: Tensor, others: Rows) -> Rows:
    """`rows` with those of `others` at `index`: on a CPU a mask would cost several passes."""
    return [
        row.index_copy(0, index, other.index_select(0, index))
        for row, other in zip(rows, others, strict=True)
    ]
