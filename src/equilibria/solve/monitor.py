"""Watches each sample of a solve, and keeps what it is to return."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.estimate import Course, Observer
from equilibria.solve.layout import Layout
from equilibria.solve.rows import (
    Rows,
    at_rest,
    choose,
    count_entries,
    entries,
    keep_samples,
    largest_of,
    length,
    select,
)
from equilibria.solve.solvers import Point, Solver, Stepper
from equilibria.solve.status import Reason, Status
from equilibria.solve.verdict import Criterion, Measure, Reference, underflow_length

RUNNING = -1
# Growth of the residual, over the larger of its first value and of f(z) there, that ends a sample.
# A start of 1e-10 beside an unstable fixed point must pass on its way to an answer of size 1. A
# higher bar costs every sample that does diverge: one that triples is found out after 22
# evaluations, at 1e8 after 18, at 1e16 after 35.
DIVERGENCE = 1e10
STALLED_DIVERGENCE = 1e8  # the same for a sample that would be called stalled
STALL = 0.99  # what must be left of the best residual, at most, after `patience` evaluations
SETTLED = 1e-3  # share of all entries, and of their size, that tells a front from rounding
SHRINKING = 0.9  # what is left of ||f(z)||, at most, of a state on its way to zero
COMPACT_BELOW = 0.85  # share of running samples under which the finished ones leave the batch


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What ends a sample, what is returned of it, and what is noted on the way.

    Attributes:
        trace: record the residual after each evaluation, and at the end the Ritz values.
        tracked: autograd follows the iteration.
        returns: "best": the value of a sample is its best iterate; "last": the last one, or the
            best where f is not finite at that; "next": the step after the last one, where f is
            finite, with the last one's residual; not where samples leave the batch.
        exactly: tolerances end no sample before `max_evals`, they say how it stands there.
        rtol: `(samples,)`, each sample's own relative tolerance, in place of the solver's.
        origin: `(samples,)`, the length of f(0), where growth is to be measured from there and not
            from the start: that of an affine map, wherever a warm start begins.
        before: `(samples,)`, the size of the start of the solve that z comes from; see `Reference`.
        layout: how the state lies in the rows; None where each is a sample as it is.
    """

    trace: bool = False
    tracked: bool = False
    returns: str = "best"
    exactly: bool = False
    rtol: Tensor | None = None
    origin: Tensor | None = None
    before: Tensor | None = None
    layout: Layout | None = None


class Monitor:
    """Says of each sample how it goes, and keeps what it is to return.

    Most evaluations are uneventful: every sample that runs has come closer, none has arrived. Then
    the newest iterate is the best of all samples, which takes no copy, and two comparisons have
    said so. Where some fall back or arrive, these alone are touched; only where something is wrong
    is every sample gone through.

    A sample that has finished stays in the batch, at its answer: its residual does not change, it
    falls neither back nor below, and is no event (unless f is not a number there).

    The samples still in the batch are numbered as in the batch; `full_*` number all samples of the
    solve.
    """

    def __init__(self, solver: Solver, stepper: Stepper, z: Rows, terms: Terms) -> None:
        samples, device, dtype = z[0].shape[0], z[0].device, z[0].dtype
        self.solver = solver
        self.stepper = stepper
        self.returns, self.tracked = terms.returns, terms.tracked
        self.exactly = terms.exactly
        self.evals = 0
        self.spent: Tensor | None = None  # beyond these, where a method spends more
        self.criterion = Criterion.of(solver, terms.layout, terms.rtol)
        self.by_part = self.criterion.by_part
        # By relative residual, until one is held.
        self.best_is_closest = self.criterion.plain and solver.error is None
        self.course = Course(solver.error)
        self.goal = self.criterion.goal
        goal = torch.full((samples,), self.goal, dtype=dtype, device=device)
        # Even where the goal is 0.
        self.unit = self.criterion.unit(dtype)
        # A sample runs while its error ratio is not below `floor`; -inf for one that has finished.
        self.floor = torch.nextafter(goal, goal + 1).clamp_min_(torch.finfo(dtype).tiny)
        self.top = goal  # a residual above it has diverged
        # One below it is looked at more closely, unless its sample has finished.
        self.low = self.small = torch.full_like(goal, underflow_length(z))
        unknown = torch.full_like(goal, math.inf)
        self.reference = Reference(unknown, unknown)
        self.origin, self.before = terms.origin, terms.before
        self.full_size = unknown  # S, of all samples
        self.ceiling = unknown  # above it f(z) has outgrown the start
        self.error = unknown  # error ratio of the best iterate, without the estimated error,
        self.relative = unknown  # its relative residual,
        self.size = unknown  # and ||f - z||, for methods that look around
        self.mark = unknown  # the best error ratio when last looked for a stall,
        self.size_mark = unknown  # and the least ||f - z||
        self.scale_mark = unknown  # and ||f|| at such a look
        self.rows_mark: Rows = z  # and z
        # Whose relative residual was small enough, and nothing else: see `_hold`.
        self.held = torch.zeros(samples, dtype=torch.bool, device=device)
        self.any_held = False
        self.best = z
        self.now, self.now_relative, self.now_error, self.now_rank = z, unknown, unknown, unknown
        self.left = samples  # how many run; not known where tracked
        self.next_look = 0  # the next evaluation that is gone through, whatever its residual
        self.any_finished = False
        # Who has ended with the newest evaluation, and has a step to take from it.
        self.stepping = torch.zeros_like(self.held)
        self.finished: tuple[Tensor, Rows] | None = None  # who, and where they stay
        self.index: Tensor | None = None  # of the samples in the batch, among all; None: all
        self.full_status = torch.zeros(samples, dtype=torch.int8, device=device)  # CONVERGED
        self.full_reason = torch.zeros(samples, dtype=torch.int8, device=device)
        self.full_evals = torch.zeros(samples, dtype=torch.int64, device=device)
        self.full_residual = unknown
        self.full_value = z
        self.observer = Observer(samples, terms.trace)

    # --- checking ---------------------------------------------------------------------------------

    def observe(self, point: Point) -> bool:
        """Judges an evaluated iterate; True when no sample runs any more."""
        size = point.size
        self.evals += 1
        if self.stepper.spent is not None:
            spent = torch.where(self.is_running, self.stepper.spent, 0)
            self.spent = spent if self.spent is None else self.spent + spent
        scale = length([row.detach() for row in point.f] if self.tracked else point.f)
        if self.evals == 1:
            self._begin(size, scale)
        self.course.add(point.z, point.f)
        found = self.criterion.measure(point.residual, point.f, size, scale)
        self.now, self.now_relative, self.now_error = point.z, found.relative, found.error_ratio
        if self.evals < self.next_look and self.spent is None:
            if self._is_uneventful(size, found.error_ratio):
                self.best, self.size = point.z, size
                self.error, self.relative = found.error_ratio, found.relative
                return False
            if self._is_valid(size, scale):
                here = (found.error_ratio < self.floor).nonzero().flatten()
                if not self._any_grown(scale, here):
                    self._keep(point, found.error_ratio)
                    return self._end(here, None, None)
        return self._check_all(point, found)

    def _begin(self, size: Tensor, scale: Tensor) -> None:
        self.reference = Reference.at(size, scale, self.before)
        self.top = DIVERGENCE * self.reference.size
        self.full_size = self.reference.size_to_keep
        if self.origin is not None:
            self.reference = Reference(self.origin, torch.zeros_like(self.origin))
        self.ceiling = self.reference.ceiling
        self.small = torch.maximum(self.small, self.reference.zero)
        self.low = self.small

    def _plan(self) -> None:
        """Says which evaluation is to be gone through next, whatever its residual."""
        most, patience = self.solver.max_evals, self.solver.patience
        closely = self.any_held or self.observer.traces or self.course.limit is not None
        if self.returns == "next" or closely:
            self.next_look = 0
        else:
            past = 0 if patience is None else -self.evals % patience
            self.next_look = most if patience is None else min(most, self.evals + 1 + past)

    def pass_over(self, points: list[Point], scale: Tensor) -> None:
        """Takes note of uneventful evaluations; `scale` is the length of the newest f(z)."""
        point = points[-1]
        found = self.criterion.measure(point.residual, point.f, point.size, scale)
        self.evals += len(points)
        for each in points:
            self.course.add(each.z, each.f)
        self.best, self.size = point.z, point.size
        self.error, self.relative = found.error_ratio, found.relative

    def _is_uneventful(self, size: Tensor, error: Tensor) -> bool:
        """Has every sample come closer, none arrived, and none diverged?"""
        inside = torch.clamp(error, min=self.floor, max=self.error)
        return torch.equal(inside, error) and torch.equal(
            torch.clamp(size, min=self.low, max=self.top), size
        )

    def _any_grown(self, scale: Tensor, here: Tensor) -> bool:
        """Has f(z) outgrown the start for any of the samples at these places?"""
        if not len(here) or torch.equal(torch.minimum(scale, self.ceiling), scale):
            return False
        return bool((scale > self.ceiling).index_select(0, here).any())

    def _is_valid(self, size: Tensor, scale: Tensor) -> bool:
        """Is all finite, none too small to be squared, none diverged?"""
        # Not a number where the scale is not finite, or the size is zero: 0 / 0 is no ratio.
        size = torch.addcdiv(size, scale, size, value=0.0)
        return torch.equal(torch.clamp(size, min=self.small, max=self.top), size)

    def _keep(self, point: Point, error: Tensor) -> None:
        """Keeps the best iterate, the one with the smallest `error`, by reference where no sample
        fell back."""
        self.now_rank, relative = error, self.now_relative
        if self.returns == "next" and not self.stepper.looks_around:
            # Which iterate is best does not matter; how good it was tells of a stall.
            self.error = torch.minimum(error, self.error)
            return
        if self.tracked:
            better = error <= self.error
            self.best = choose(better, point.z, self.best)
            self.relative = torch.where(better, relative, self.relative)
            self.size = torch.where(better, point.size, self.size)
            self.error = torch.where(better, error, self.error)
            return
        back = (error > self.error).nonzero().flatten()
        if not len(back):
            self.best, self.size = point.z, point.size
            self.error, self.relative = error, relative
            return
        self.best = _with(point.z, back, self.best)
        if not self.best_is_closest:
            self.relative = _with([relative], back, [self.relative])[0]
        if self.stepper.looks_around:
            self.size = _with([point.size], back, [self.size])[0]
        self.error = torch.minimum(error, self.error)
        if self.best_is_closest:
            self.relative = self.error

    def _check_all(self, point: Point, found: Measure) -> bool:
        """Goes through all that can end a sample; of several, the last one named here counts."""
        solver, size, scale = self.solver, found.size, found.scale
        finite = torch.isfinite(size + scale)
        relative, error = found.relative, found.error_ratio
        short, large = size < self.small, scale > self.ceiling
        beyond: Tensor | None = None  # f is finite, and the square of its length is not
        if self.any_held or private.some(short | ~finite | (large & (error < self.floor))):
            beyond = ~finite & torch.isfinite(largest_of([*point.z, *point.f]))
            if not self.by_part:  # where every part has been measured in a unit of its own
                found = self.criterion.correct(found, point.residual, point.f, short)
            zero = self.reference.is_zero(size, scale)
            relative = torch.where(zero, 0.0, found.relative)
            error = torch.where(zero, 0.0, found.error_ratio)
            if self.any_held or private.some(large & (error < self.floor)):
                error = self._hold(error, found, point.f)
        # What is not finite has no ratio.
        relative = torch.where(finite, relative, math.inf)
        error = torch.where(finite, error, math.inf)
        rank = error
        if self.course.limit is not None:
            self.course.compare(relative, self.course.limit)
            excess = self.unit * cast(Tensor, self.course.excess)
            error = torch.where(error == 0, error, torch.maximum(error, excess))
            # The estimated error may rise while the residual falls: until both are small enough, a
            # sample is as good as its residual.
            rank = torch.where(error <= self.goal, 0.0, rank)
        self.now_relative, self.now_error = relative, error
        if self.observer.traces:
            self.observer.note_evaluation(point, relative, self.is_running, self.index)
        self._keep(point, rank)

        count = self.evals if self.spent is None else self.evals + self.spent
        over = torch.as_tensor(count >= solver.max_evals, device=size.device)
        status = torch.where(over, int(Status.MAX_EVALS), RUNNING)
        if solver.patience is not None and self.evals % solver.patience == 1 % solver.patience:
            if self.evals > 1:
                stalled = self._has_stalled(point, found)
                status = torch.where(stalled, int(Status.STALLED), status)
                far = size > STALLED_DIVERGENCE / DIVERGENCE * self.top
                status = torch.where(stalled & far, int(Status.DIVERGED), status)
            self.mark, self.rows_mark = self.error, [row.detach() for row in point.z]
            first = self.evals == 1
            self.size_mark = size if first else torch.fmin(size, self.size_mark)
            self.scale_mark = scale if first else torch.fmin(scale, self.scale_mark)
        far = size > self.top
        if beyond is not None:
            far, finite = far | beyond, finite | beyond
        status = torch.where(far, int(Status.DIVERGED), status)
        status = torch.where(error <= self.goal, int(Status.CONVERGED), status)
        status = torch.where(finite, status, int(Status.NONFINITE)).to(torch.int8)
        if self.exactly:
            status = torch.where(over | ~finite, status, RUNNING)
        reason = self.full_reason.new_zeros(()) if self.tracked else None
        if self.any_held or self.course.limit is not None:
            failed = (status == Status.MAX_EVALS) | (status == Status.STALLED)
            reason = torch.zeros_like(status)
            if self.course.limit is not None:
                wrong = failed & (self.error <= self.goal)
                reason = torch.where(wrong, int(Reason.ERROR), int(Reason.NONE))
            reason = torch.where(failed & self.held, int(Reason.GROWTH), reason).to(torch.int8)
        self._plan()
        ended = self.is_running & (status != RUNNING)
        goes_on = finite if self.returns == "next" else status == Status.MAX_EVALS
        self.stepping = ended & goes_on
        if self.returns == "last":  # but where f is not finite, whose gradient would not be either
            lost = ended & ~finite
            self.now = choose(lost, self.best, self.now)
            self.now_relative = torch.where(lost, self.relative, self.now_relative)
        if self.tracked:
            assert reason is not None
            return self._end_tracked(ended, status, reason)
        return self._end(ended.nonzero().flatten(), status, reason)

    def _has_stalled(self, point: Point, found: Measure) -> Tensor:
        """Whose best residual has hardly fallen since the latest look, with nothing on its way.

        A signal on its way is progress that shows no less, and so is a state on its way to zero,
        whose relative residual need not fall.
        """
        size, scale = found.size, found.scale
        moving = (scale < SHRINKING * self.scale_mark) & (scale < self.reference.size / 2)
        moving = moving & (size < SHRINKING * self.size_mark)
        if self.origin is not None:  # zero solves no linear system but that of zero
            moving = torch.zeros_like(moving)
        if found.arriving is not None:
            moving = moving | found.arriving
        stalled = (self.error > STALL * self.mark) & ~moving
        if private.some(stalled & self.is_running):
            stalled = stalled & ~self._carries_front(point, scale)
        return stalled

    def _carries_front(self, point: Point, scale: Tensor) -> Tensor:
        """Have entries, one in a thousand, changed since the latest look and come to rest?"""
        size = entries(point.f)
        least = (SETTLED * size**-0.5 * scale).unsqueeze(1)
        settled = count_entries(
            [
                rest & ((image - before).abs() > least)
                for rest, image, before in zip(
                    at_rest(point.z, point.f), point.f, self.rows_mark, strict=True
                )
            ]
        )
        return settled > SETTLED * size

    def _hold(self, error: Tensor, found: Measure, rows: Rows) -> Tensor:
        """The error ratio of samples whose relative residual is small, but of a state that has
        grown.

        One that has not fallen enough is held: from here on the worse of both ratios is its own,
        and what it was the best of by the relative residual alone counts no more.
        """
        fallen = self.unit * self.criterion.fallen(found, self.reference, rows)
        large = found.scale > self.ceiling
        new = large & (error <= self.goal) & ~(fallen <= self.unit)
        held = self.is_running & (self.held | new)
        first = held & ~self.held
        self.error = torch.where(first, math.inf, self.error)
        self.mark = torch.where(first, math.inf, self.mark)
        self.held, self.any_held = held, private.some(held)
        self.best_is_closest = self.best_is_closest and not self.any_held
        return torch.where(held & large, torch.maximum(error, fallen), error)

    # --- samples that end ------------------------------------------------------------------------

    def _end(self, here: Tensor, status: Tensor | None, reason: Tensor | None) -> bool:
        """Keeps what is known of the samples that end here; True when no sample runs any more.

        Args:
            here: their places in the batch.
            status: `(samples,)`; None: all that end have converged.
            reason: the same; None: there is none.
        """
        if not len(here):
            return False
        at = here if self.index is None else self.index.index_select(0, here)
        value, relative = self.answer
        if len(here) == self.full_evals.numel() and status is not None:  # all at once
            self.full_evals.fill_(self.evals)
            self.full_status, self.full_residual = status, relative
        else:
            self.full_evals.index_fill_(0, at, self.evals)
            if status is not None:
                self.full_status.index_copy_(0, at, status.index_select(0, here))
            # A later evaluation of a finished sample might find it otherwise.
            relative = relative.index_select(0, here)
            self.full_residual = self.full_residual.index_copy(0, at, relative)
        if self.spent is not None:
            self.full_evals.index_add_(0, at, self.spent.index_select(0, here))
        if reason is not None:
            self.full_reason.index_copy_(0, at, reason.index_select(0, here))
        # Of an earlier iterate nothing is known.
        older = status is not None and self.returns == "best"
        self.course.end(here, at, self.now_rank <= self.error if older else None)
        self.observer.note_end(self.stepper, here, at)
        self.stepper.end(here)
        self.left -= len(here)
        self.floor.index_fill_(0, here, -math.inf)
        if not self.left:
            self._store()
            return True
        self.low = self.low.index_fill(0, here, -math.inf)
        rows = select(value, here)
        if self.finished is not None:
            index, before = self.finished
            here = torch.cat([index, here])
            rows = [torch.cat(pair) for pair in zip(before, rows, strict=True)]
        self.finished = (here, rows)
        self.any_finished = True
        return False

    def _store(self) -> None:
        """Writes what the batch holds among all: of a finished sample, its answer."""
        self.full_value = self.among_all(self.answer[0])

    def _end_tracked(self, ended: Tensor, status: Tensor, reason: Tensor) -> bool:
        """The same by masks: nothing is written in place, and entries may be hidden by vmap."""
        count = self.evals if self.spent is None else self.evals + self.spent
        self.any_finished = self.any_finished or private.some(ended)
        self.full_status = torch.where(ended, status, self.full_status)
        self.full_reason = torch.where(ended, reason, self.full_reason)
        self.full_evals = torch.where(ended, count, self.full_evals)
        self.full_residual = torch.where(ended, self.now_relative, self.full_residual)
        self.floor = torch.where(ended, -math.inf, self.floor)
        return not private.some(self.is_running)

    def freeze(self, z: Rows, f: Rows) -> Rows:
        """The next iterate of running samples; a finished one stays at its answer.

        Args:
            z: the method's next iterate.
            f: what the function has returned. It may be somebody's, so it is never written to.
        """
        assert self.finished is not None
        index, rows = self.finished
        return [
            new.index_copy(0, index, at)
            if _same_memory(new, image)
            else new.index_copy_(0, index, at)
            for new, image, at in zip(z, f, rows, strict=True)
        ]

    def error_ratio(self) -> Callable[[Point], Tensor]:
        """What computes `Point.error_ratio`, without a reference to this monitor."""
        criterion, course = self.criterion, self.course

        def compute(point: Point) -> Tensor:
            ratio = criterion.error_ratio(point)
            return ratio if course.excess is None else torch.maximum(ratio, course.excess)

        return compute

    def around(self, point: Point) -> Point:
        """The point, with what methods that look around want to know."""
        return point._replace(
            best=self.best,
            best_size=self.size,
            running=self.moves,
            error_ratio=self.now_error / self.unit,
        )

    @property
    def answer(self) -> tuple[Rows, Tensor]:
        """What each sample returns if it ends now, and its relative residual."""
        if self.returns == "best":
            return self.best, self.relative
        return self.now, self.now_relative

    @property
    def is_running(self) -> Tensor:
        """Which samples of the batch have not finished."""
        return self.floor > 0

    @property
    def moves(self) -> Tensor:
        """Which samples the step from the newest evaluation is for."""
        return self.is_running | self.stepping

    def few_running(self) -> bool:
        """Does it pay to drop the samples that have finished?"""
        return self.finished is not None and self.left <= COMPACT_BELOW * self.floor.numel()

    def drop_finished(self) -> Tensor:
        """Drops the samples that have finished; returns which stay."""
        self._store()
        keep = self.is_running.nonzero().flatten()
        self.index = keep if self.index is None else self.index.index_select(0, keep)
        keep_samples(self, keep, "floor top small low ceiling error relative size mark size_mark")
        keep_samples(self, keep, "scale_mark rows_mark held stepping spent best")
        self.course.select(keep)
        self.reference = self.reference.select(keep)
        self.criterion = self.criterion.select(keep)
        self.finished, self.any_finished = None, False
        return keep

    def among_all(self, z: Rows) -> Rows:
        """Rows of the samples in the batch, with the values of those that have left."""
        if self.index is None:
            return z
        place = self.index
        return [
            all_.index_copy(0, place, row) for all_, row in zip(self.full_value, z, strict=True)
        ]


def _with(rows: Rows, index: Tensor, others: Rows) -> Rows:
    """`rows` with those of `others` at `index`: on a CPU a mask would cost several passes."""
    return [
        row.index_copy(0, index, other.index_select(0, index))
        for row, other in zip(rows, others, strict=True)
    ]


def _same_memory(a: Tensor, b: Tensor) -> bool:
    """Do two tensors, or what they are views of, lie in the same memory?"""
    return a is b or a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
