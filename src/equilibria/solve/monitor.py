"""Watches each sample of a solve, and keeps what it is to return."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from equilibria.solve import fused, private
from equilibria.solve.convergence import Criterion, Measure, Reference
from equilibria.solve.estimate import Course, Observer
from equilibria.solve.layout import Layout
from equilibria.solve.outcome import Best, Outcome
from equilibria.solve.rows import Rows, choose, keep_samples, length
from equilibria.solve.solvers import Point, Solver, Stepper
from equilibria.solve.status import RUNNING, Status
from equilibria.solve.termination import Judge

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
    is every sample gone through, by a `Judge`.

    A sample that has finished stays in the batch, at its answer: its residual does not change, it
    falls neither back nor below, and is no event (unless f is not a number there).

    Attributes:
        evals: evaluations so far.
        fused: the operators of `fused` serve.
        spent: `(samples,)` beyond these, where a method spends more.
        best: the best iterates.
        judge: what ends a sample.
        outcome: what is known of samples that have ended.
        arrival: `(samples,)`, the tolerance ratio below which a sample has arrived; -inf for one
            that has finished, so that it also says who runs.
        low: a residual below it is looked at more closely, unless its sample has finished.
        next_look: the next evaluation that is gone through, whatever its residual.
        stepping: who has ended with the newest evaluation, and has a step to take from it.
    """

    PER_SAMPLE = ("arrival", "low", "stepping", "spent")

    def __init__(self, solver: Solver, stepper: Stepper, z: Rows, terms: Terms) -> None:
        self.solver, self.stepper, self.terms = solver, stepper, terms
        self.returns, self.tracked = terms.returns, terms.tracked
        self.evals = 0
        self.spent: Tensor | None = None
        self.fused = not self.tracked and fused.serves(z)
        self.course = Course(solver.error)
        criterion = Criterion.of(solver, terms.layout, terms.rtol)
        samples, dtype = z[0].shape[0], z[0].dtype
        goal = torch.full((samples,), criterion.goal, dtype=dtype, device=z[0].device)
        # Even where the goal is 0.
        self.arrival = torch.nextafter(goal, goal + 1).clamp_min_(torch.finfo(dtype).tiny)
        unknown = torch.full_like(goal, math.inf)
        self.best = Best(
            z,
            unknown,
            wanted=self.returns != "next" or stepper.looks_around,
            sized=stepper.looks_around,
            is_closest=criterion.plain and solver.error is None,  # until a sample is held
            tracked=self.tracked,
        )
        self.judge = Judge(solver, criterion, self.best, self.course, z, terms.origin is not None)
        self.low = self.judge.small
        self.outcome = Outcome(z, unknown)
        self.now, self.now_relative, self.now_error, self.now_rank = z, unknown, unknown, unknown
        self.next_look = 0
        self.any_finished = False
        self.stepping = torch.zeros_like(self.judge.held)
        self.observer = Observer(samples, terms.trace)

    # --- checking ---------------------------------------------------------------------------------

    def observe(self, point: Point, scale: Tensor | None = None) -> bool:
        """Judges an evaluated iterate; True when no sample runs any more.

        Args:
            scale: the length of f(z), where the caller knows it.
        """
        size, judge = point.size, self.judge
        self.evals += 1
        if self.stepper.spent is not None:
            spent = torch.where(self.is_running, self.stepper.spent, 0)
            self.spent = spent if self.spent is None else self.spent + spent
        if scale is None:
            scale = length([row.detach() for row in point.f] if self.tracked else point.f)
        if self.evals == 1:
            reference = Reference.at(size, scale, self.terms.before)
            self.outcome.size = reference.size_to_keep
            judge.begin(reference, self.terms.origin)
            self.low = judge.small
        self.course.add(point.z, point.f)
        found = judge.criterion.measure(point.residual, point.f, size, scale)
        self.now, self.now_relative, self.now_error = point.z, found.relative, found.tolerance_ratio
        if self.evals < self.next_look and self.spent is None:
            if self._is_uneventful(size, found.tolerance_ratio):
                self.best.take(point.z, size, found.tolerance_ratio, found.relative)
                return False
            if judge.is_valid(size, scale):
                here = (found.tolerance_ratio < self.arrival).nonzero().flatten()
                if not judge.any_grown(scale, here):
                    self._keep(point, found, found.tolerance_ratio)
                    return self._end(here, None, None)
        return self._check_all(point, found)

    def pass_over(self, points: list[Point], scale: Tensor) -> None:
        """Takes note of uneventful evaluations; `scale` is the length of the newest f(z)."""
        point = points[-1]
        found = self.judge.criterion.measure(point.residual, point.f, point.size, scale)
        self.evals += len(points)
        for each in points:
            self.course.add(each.z, each.f)
        self.best.take(point.z, point.size, found.tolerance_ratio, found.relative)

    def _is_uneventful(self, size: Tensor, error: Tensor) -> bool:
        """Has every sample come closer, none arrived, and none diverged?"""
        inside = torch.clamp(error, min=self.arrival, max=self.best.error)
        return torch.equal(inside, error) and torch.equal(
            torch.clamp(size, min=self.low, max=self.judge.top), size
        )

    def _keep(self, point: Point, found: Measure, rank: Tensor) -> None:
        self.now_rank = rank
        self.best.keep(point.z, point.size, rank, found.relative)

    def _check_all(self, point: Point, found: Measure) -> bool:
        """Goes through all that can end a sample."""
        judge, running = self.judge, self.is_running
        found, rank, valid = judge.judge_newest(point, found, self.arrival)
        self.now_relative, self.now_error = found.relative, found.tolerance_ratio
        if self.observer.traces:
            index = self.outcome.index
            self.observer.note_evaluation(point, found.relative, running, index)
        self._keep(point, found, rank)
        over = torch.as_tensor(self.count >= self.solver.max_evals, device=rank.device)
        status = judge.update_status(point, found, valid, self.evals, over, running)
        retried = self.stepper.retry(running & (status == Status.STALLED))
        if retried is not None:
            status = torch.where(retried, RUNNING, status)
        if self.terms.exactly:
            status = torch.where(over | ~valid, status, RUNNING)
        reason = judge.name_reason(status)
        self._plan()
        ended = running & (status != RUNNING)
        goes_on = valid if self.returns == "next" else status == Status.MAX_EVALS
        self.stepping = ended & goes_on
        if self.returns == "last":  # but where f is not finite, whose gradient would not be either
            lost = ended & ~valid
            self.now = choose(lost, self.best.z, self.now)
            self.now_relative = torch.where(lost, self.best.relative, self.now_relative)
        if self.tracked:
            self.any_finished = self.any_finished or private.some(ended)
            self.outcome.end_tracked(ended, self.count, status, reason, self.now_relative)
            self.arrival = torch.where(ended, -math.inf, self.arrival)
            return not private.some(self.is_running)
        return self._end(ended.nonzero().flatten(), status, reason)

    def _plan(self) -> None:
        """Says which evaluation is to be gone through next, whatever its residual."""
        most, patience = self.solver.max_evals, self.solver.patience
        closely = self.judge.any_held or self.observer.traces or self.course.limit is not None
        if self.returns == "next" or closely:
            self.next_look = 0
        else:
            past = 0 if patience is None else -self.evals % patience
            self.next_look = most if patience is None else min(most, self.evals + 1 + past)

    # --- samples that end ------------------------------------------------------------------------

    def end_arrived(self, here: Tensor, evals: Tensor, relative: Tensor, products: Tensor) -> bool:
        """Ends samples that have converged in evaluations that have been counted and kept; True
        when no sample runs any more.

        Args:
            here: their places in the batch.
            evals: `(samples,)`, when.
            relative: `(samples,)`, their relative residuals.
            products: `(samples, 9)`, of their last differences; see `Course`.
        """
        at = self.outcome.end(here, evals, None, None, None, relative)
        self.course.note(at, products.index_select(0, here))
        self.now = self.course.points[-1][0]
        return self._take_out(here, at, self.answer[0])

    def _end(self, here: Tensor, status: Tensor | None, reason: Tensor | None) -> bool:
        """Keeps what is known of the samples that end here; True when no sample runs any more.

        Args:
            here: their places in the batch.
            status: `(samples,)`; None: all that end have converged.
            reason: the same; None: there is none.
        """
        if not here.numel():
            return False
        value, relative = self.answer
        outcome = self.outcome
        at = outcome.end(here, self.evals, self.spent, status, reason, relative)
        # Of an earlier iterate nothing is known.
        older = status is not None and self.returns == "best"
        self.course.end(here, at, self.now_rank <= self.best.error if older else None)
        return self._take_out(here, at, value)

    def _take_out(self, here: Tensor, at: Tensor, value: Rows) -> bool:
        outcome = self.outcome
        self.observer.note_end(self.stepper, here, at)
        self.stepper.end(here)
        self.arrival.index_fill_(0, here, -math.inf)
        if not outcome.left:
            outcome.value = outcome.among_all(value)
            return True
        self.low = self.low.index_fill(0, here, -math.inf)
        outcome.hold(here, value)
        self.any_finished = True
        return False

    def few_running(self) -> bool:
        """Does it pay to drop the samples that have finished?"""
        outcome = self.outcome
        return outcome.finished is not None and outcome.left <= COMPACT_BELOW * self.arrival.numel()

    def drop_finished(self) -> Tensor:
        """Drops the samples that have finished; returns which stay."""
        keep = self.is_running.nonzero().flatten()
        self.outcome.drop(keep, self.answer[0])
        keep_samples(self, keep)
        for part in (self.best, self.judge, self.course):
            part.select(keep)
        self.any_finished = False
        return keep

    # --- what the loop asks for -------------------------------------------------------------------

    def tolerance_ratio(self) -> Callable[[Point], Tensor]:
        """What computes `Point.tolerance_ratio`, without a reference to this monitor."""
        criterion, course = self.judge.criterion, self.course

        def compute(point: Point) -> Tensor:
            ratio = criterion.tolerance_ratio(point)
            return ratio if course.excess is None else torch.maximum(ratio, course.excess)

        return compute

    def around(self, point: Point) -> Point:
        """The point, with what methods that look around want to know."""
        return point._replace(
            best=self.best.z,
            best_size=self.best.size,
            running=self.moves,
            tolerance_ratio=self.now_error / self.judge.unit,
        )

    @property
    def count(self) -> int | Tensor:
        """Evaluations so far, of each sample where they differ."""
        return self.evals if self.spent is None else self.evals + self.spent

    @property
    def answer(self) -> tuple[Rows, Tensor]:
        """What each sample returns if it ends now, and its relative residual."""
        if self.returns == "best":
            return self.best.z, self.best.relative
        return self.now, self.now_relative

    @property
    def is_running(self) -> Tensor:
        """Which samples of the batch have not finished."""
        return self.arrival > 0

    @property
    def moves(self) -> Tensor:
        """Which samples the step from the newest evaluation is for."""
        return self.is_running | self.stepping
