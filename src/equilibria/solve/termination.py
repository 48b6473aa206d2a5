"""All that can end a sample of a solve, and the fronts that keep it from being called stalled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.convergence import Criterion, Measure, Reference, underflow_length
from equilibria.solve.estimate import Course
from equilibria.solve.outcome import Best
from equilibria.solve.rows import Rows, entries, keep_samples, largest_of, sum_of
from equilibria.solve.solvers import Picard, Point, Solver
from equilibria.solve.status import RUNNING, Reason, Status

# Growth of the residual, over the larger of its first value and of f(z) there, that ends a sample.
# A start of 1e-10 beside an unstable fixed point must pass on its way to an answer of size 1. A
# higher bar costs every sample that does diverge: one that triples is found out after 22
# evaluations, at 1e8 after 18, at 1e16 after 35.
DIVERGENCE = 1e10
STALLED_DIVERGENCE = 1e8  # the same for a sample that would be called stalled
STALL = 0.99  # what may be left of the best residual: more after many evaluations is no progress
SHRINKING = 0.9  # what is left of ||f(z)||, at most, of a state on its way to zero


class Judge:
    """Says which samples have ended, and how.

    Args:
        solver: whose limits hold.
        criterion: its tolerance.
        best: the best iterates so far.
        course: estimates the error.
        z: the start.
        affine: f is an affine map: zero solves it only if it is zero itself.

    Attributes:
        goal: the tolerance ratio that is small enough.
        unit: the same, above 0 even where the goal is 0.
        reference: what growth is measured from.
        top: a residual above it has diverged.
        small: one below it is too short to be squared, or zero to rounding.
        growth_limit: above it f(z) has outgrown the start.
        held: whose relative residual was small enough, and nothing else: see `_hold`.
    """

    PER_SAMPLE = (
        *("top", "small", "growth_limit", "held"),
        *("error_mark", "size_mark", "scale_mark", "rows_mark", "rest_mark", "loud_mark"),
    )

    def __init__(
        self,
        solver: Solver,
        criterion: Criterion,
        best: Best,
        course: Course,
        z: Rows,
        affine: bool,
    ) -> None:
        self.solver, self.criterion = solver, criterion
        self.best, self.course = best, course
        self.affine = affine
        self.goal, self.unit = criterion.goal, criterion.unit(z[0].dtype)
        unknown = best.error
        self.reference = Reference(unknown, unknown)
        self.top = self.growth_limit = unknown
        self.small = torch.full_like(unknown, underflow_length(z))
        self.held = torch.zeros_like(unknown, dtype=torch.bool)
        self.any_held = False
        # What the latest look for a stall found: the best tolerance ratio, the least ||f - z|| and
        # ||f|| by then, the loud entries, z, and which entries were at rest.
        self.error_mark = self.size_mark = self.scale_mark = self.loud_mark = unknown
        self.rows_mark = self.rest_mark = z

    def begin(self, reference: Reference, origin: Tensor | None) -> None:
        """Growth is measured from the start, or from `origin`, see `Terms`."""
        self.top = DIVERGENCE * reference.size
        if origin is not None:
            reference = Reference(origin, torch.zeros_like(origin))
        self.reference, self.growth_limit = reference, reference.growth_limit
        self.small = torch.maximum(self.small, reference.zero)

    def any_grown(self, scale: Tensor, here: Tensor) -> bool:
        """Has f(z) outgrown the start for any of the samples at these places?"""
        if not len(here) or torch.equal(torch.minimum(scale, self.growth_limit), scale):
            return False
        return bool((scale > self.growth_limit).index_select(0, here).any())

    def is_valid(self, size: Tensor, scale: Tensor) -> bool:
        """Is all finite, none too small to be squared, none diverged?"""
        # Not a number where the scale is not finite, or the size is zero: 0 / 0 is no ratio.
        size = torch.addcdiv(size, scale, size, value=0.0)
        return torch.equal(torch.clamp(size, min=self.small, max=self.top), size)

    def judge_newest(
        self, point: Point, found: Measure, arrival: Tensor
    ) -> tuple[Measure, Tensor, Tensor]:
        """How good the newest iterate of each sample is; notes who is held from here on.

        Args:
            found: its measure, as the criterion has it.
            arrival: see `Monitor`.

        Returns:
            The measure, where all that can be wrong has been looked at; the tolerance ratio by
            which the best iterate is chosen; and whether f is finite, though the square of its
            length may not be.
        """
        size, scale = found.size, found.scale
        valid = finite = torch.isfinite(size + scale)
        short, large = size < self.small, scale > self.growth_limit
        relative, error = found.relative, found.tolerance_ratio
        if self.any_held or private.some(short | ~finite | (large & (error < arrival))):
            valid = finite | torch.isfinite(largest_of([*point.z, *point.f]))
            if not self.criterion.by_part:  # else every part has been measured in its own unit
                found = self.criterion.correct(found, point.residual, point.f, short)
            zero = self.reference.is_zero(size, scale)
            relative = torch.where(zero, 0.0, found.relative)
            error = torch.where(zero, 0.0, found.tolerance_ratio)
            if self.any_held or private.some(large & (error < arrival)):
                error = self._hold(error, found, point.f, arrival > 0)
        # What is not finite has no ratio.
        relative = torch.where(finite, relative, math.inf)
        rank = error = torch.where(finite, error, math.inf)
        if self.course.limit is not None:
            which = None
            if isinstance(self.solver, Picard) and not private.is_mapped(error):
                # Others have not ended, whatever their error is; plain iteration does not ask.
                which = (error <= self.goal) & (arrival > 0)
            self.course.compare(relative, self.course.limit, which)
            excess = self.unit * cast(Tensor, self.course.excess)
            error = torch.where(error == 0, error, torch.maximum(error, excess))
            # The estimated error may rise while the residual falls: until both are small enough, a
            # sample is as good as its residual.
            rank = torch.where(error <= self.goal, 0.0, rank)
        return found._replace(relative=relative, tolerance_ratio=error), rank, valid

    def update_status(
        self, point: Point, found: Measure, valid: Tensor, evals: int, over: Tensor, running: Tensor
    ) -> Tensor:
        """The status of each sample; of several, the last one named here counts. Notes where a look
        for a stall has found it.

        Args:
            point: the newest iterate, which `best` has taken account of.
            found, valid: of it, from `judge_newest`.
            evals: evaluations so far.
            over: whose budget is spent.
            running: who has not ended before.
        """
        patience = self.solver.patience
        status = torch.where(over, int(Status.MAX_EVALS), RUNNING)
        if patience is not None and evals % patience == 1 % patience:
            loud, rest = count_loud(point), large_at_rest(point, found.scale)
            if evals > 1:
                stalled = self._has_stalled(point, found, loud, rest, running)
                status = torch.where(stalled, int(Status.STALLED), status)
                far = found.size > STALLED_DIVERGENCE / DIVERGENCE * self.top
                status = torch.where(stalled & far, int(Status.DIVERGED), status)
            self.error_mark, self.rows_mark = self.best.error, [row.detach() for row in point.z]
            self.size_mark = torch.fmin(found.size, self.size_mark)
            self.scale_mark = torch.fmin(found.scale, self.scale_mark)
            self.loud_mark, self.rest_mark = loud, rest
        far = (found.size > self.top) | ~torch.isfinite(found.size + found.scale)
        status = torch.where(far, int(Status.DIVERGED), status)
        status = torch.where(found.tolerance_ratio <= self.goal, int(Status.CONVERGED), status)
        return torch.where(valid, status, int(Status.NONFINITE)).to(torch.int8)

    def name_reason(self, status: Tensor) -> Tensor | None:
        """A `Reason` of each sample; None where all statuses say enough."""
        if not (self.any_held or self.course.limit is not None):
            return None
        failed = (status == Status.MAX_EVALS) | (status == Status.STALLED)
        reason = torch.zeros_like(status)
        if self.course.limit is not None:
            wrong = failed & (self.best.error <= self.goal)
            reason = torch.where(wrong, int(Reason.ERROR), int(Reason.NONE))
        return torch.where(failed & self.held, int(Reason.GROWTH), reason).to(torch.int8)

    def _has_stalled(
        self, point: Point, found: Measure, loud: Tensor, rest: Rows, running: Tensor
    ) -> Tensor:
        """Whose best residual has hardly fallen since the latest look, with nothing on its way.

        A signal on its way is progress that shows no less, and so is a state on its way to zero,
        whose relative residual need not fall.
        """
        size, scale = found.size, found.scale
        moving = (scale < SHRINKING * self.scale_mark) & (scale < self.reference.size / 2)
        moving = moving & (size < SHRINKING * self.size_mark)
        if self.affine:
            moving = torch.zeros_like(moving)
        if found.arriving is not None:
            moving = moving | found.arriving
        stalled = (self.best.error > STALL * self.error_mark) & ~moving
        if private.some(stalled & running):
            stalled = stalled & ~carries_front(point, self.rows_mark, scale)
            stalled = stalled & ~grows_quiet(loud, self.loud_mark)
            stalled = stalled & ~comes_to_rest(rest, self.rest_mark, entries(point.f))
        return stalled

    def _hold(self, error: Tensor, found: Measure, rows: Rows, running: Tensor) -> Tensor:
        """The tolerance ratio of samples whose relative residual is small, but of a state that has
        grown.

        One that has not fallen enough is held: from here on the worse of both ratios is its own,
        and what it was the best of by the relative residual alone counts no more.
        """
        fallen = self.unit * self.criterion.fallen(found, self.reference, rows)
        large = found.scale > self.growth_limit
        new = large & (error <= self.goal) & ~(fallen <= self.unit)
        held = running & (self.held | new)
        first = held & ~self.held
        self.best.error = torch.where(first, math.inf, self.best.error)
        self.error_mark = torch.where(first, math.inf, self.error_mark)
        self.held, self.any_held = held, private.some(held)
        self.best.is_closest = self.best.is_closest and not self.any_held
        return torch.where(held & large, torch.maximum(error, fallen), error)

    def select(self, index: Tensor) -> None:
        """Keeps the samples named by `index`."""
        keep_samples(self, index)
        self.reference = self.reference.select(index)
        self.criterion = self.criterion.select(index)


# --- fronts ---------------------------------------------------------------------------------------

# Signals that travel through a state: entries that come to rest behind a front. Where f contracts
# what lies behind slowly, they take long to rest: they grow quiet, beside those before it.

SETTLED = 1e-3  # share of all entries, and of their size, that tells a front from rounding
RESTING = 1e-5  # change of an entry beside it, at which it counts as at rest behind a front
LOUD = 0.1  # change of an entry, by the RMS of all, above which it is loud
CHANCE = 3.0  # standard deviations by which a number of entries must differ from chance


def at_rest(z: Rows, f: Rows, least: float = 0.0) -> Rows:
    """Masks of the entries that f leaves as they are, up to rounding, or to a share `least`."""
    share = max(64 * torch.finfo(z[0].dtype).eps, least)
    return [(y - x).abs() <= share * y.abs() for x, y in zip(z, f, strict=True)]


def count_entries(masks: Rows) -> Tensor:
    """Entries of each sample in which the masks are true, `(samples,)`."""
    return sum_of([mask.sum(1) for mask in masks])


def count_loud(point: Point) -> Tensor:
    """Entries of each sample that f changes by more than a tenth of the RMS change, `(samples,)`.

    Their number stays about the same while all entries contract at one rate, and in a cycle.
    """
    least = (LOUD * entries(point.f) ** -0.5 * point.size.detach()).unsqueeze(1)
    rounding = 64 * torch.finfo(point.z[0].dtype).eps
    loud = [
        (y - x).abs() > torch.maximum(least, rounding * y.abs())
        for x, y in zip(point.z, point.f, strict=True)
    ]
    return count_entries(loud).to(least.dtype)


def grows_quiet(loud: Tensor, before: Tensor) -> Tensor:
    """Have so many entries grown quiet, of those loud `before`, as by chance would not?"""
    return before.isfinite() & (before - loud > CHANCE * before.sqrt())


def large_at_rest(point: Point, scale: Tensor) -> Rows:
    """Masks of the entries at rest that are not small beside the RMS of f(z), of length `scale`."""
    least = (SETTLED * entries(point.f) ** -0.5 * scale).unsqueeze(1)
    rest = zip(at_rest(point.z, point.f, RESTING), point.f, strict=True)
    return [still & (row.abs() > least) for still, row in rest]


def comes_to_rest(rest: Rows, before: Rows, size: int) -> Tensor:
    """Have more entries come to rest than have left it since `before`, one in a thousand of all
    `size`, and more than if each came and left by chance?"""
    pairs = list(zip(rest, before, strict=True))
    gained = count_entries([now & ~then for now, then in pairs])
    lost = count_entries([then & ~now for now, then in pairs])
    most = torch.clamp(CHANCE * (gained + lost).to(torch.float32).sqrt(), min=SETTLED * size)
    return gained - lost > most


def carries_front(point: Point, before: Rows, scale: Tensor) -> Tensor:
    """Have entries, one in a thousand, changed since `before` and come to rest? `scale` is the
    length of f(z)."""
    size = entries(point.f)
    least = (SETTLED * size**-0.5 * scale).unsqueeze(1)
    rest = zip(at_rest(point.z, point.f, RESTING), point.f, before, strict=True)
    settled = count_entries([still & ((image - row).abs() > least) for still, image, row in rest])
    return settled > SETTLED * size


def front_arrives(point: Point, before: Sequence[Rows], evals: int, most: int) -> Tensor:
    """Do so many entries come to rest at each evaluation that all will within the budget?

    Those that are zero do not count: an activation that dies is no signal.

    Args:
        before: the one or two iterates before this one.
        evals: evaluations so far.
        most: evaluations that there may be.
    """
    last = at_rest(point.z, point.f)
    signal = count_entries([x & (row != 0) for x, row in zip(last, point.f, strict=True)]) > 0
    if not private.some(signal):
        return signal
    rest = [*(at_rest(z, f) for z, f in pairwise([*before, point.z])), last]
    fresh = [
        count_entries(
            [x & ~y & (row != 0) for x, y, row in zip(later, earlier, point.z, strict=True)]
        )
        for earlier, later in pairwise(rest)
    ]
    rate = sum(fresh[1:], fresh[0])
    if len(fresh) == 2 and evals == 3:  # rows without a neighbour rest at once
        rate = torch.where(fresh[0] * fresh[1] > 0, rate, 0)
    moving = entries(point.z) - count_entries(last)
    return signal & (rate > 0) & (moving <= rate * (most - evals))
