"""The default solver, which begins as plain iteration and accelerates where that pays."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.anderson import Anderson, AndersonStepper
from equilibria.solve.layout import Groups, Layout
from equilibria.solve.linear import LinearSolver, linear_field
from equilibria.solve.newton import PER_STEP, NewtonKrylov, NewtonStepper
from equilibria.solve.options import refuse_ignored, whole_field
from equilibria.solve.rows import Rows, choose, entries, keep_samples, select
from equilibria.solve.solvers import Jacobian, Point, Solver, Stepper
from equilibria.solve.termination import count_loud, front_arrives, grows_quiet

PERIOD = 3  # evaluations from one extrapolation to the next, of a small sample
FIRST_LOOK = 6  # at how it goes by plain steps; each other one after twice as many
# Entries of a sample from which f is taken to cost more than an extrapolation does.
LARGE = 1024
SLOW, SLOW_LARGE = 80.0, 1.0  # plain evaluations still needed, above which acceleration pays
POOR = 20.0  # plain evaluations still needed, above which a front is looked for
DOUBLES, GROWS = math.log(2.0), math.log(1.05)  # in one plain step; in each of several
JUDGED = 6  # evaluations between two judgements of the acceleration
LONG = 4  # judgements over which the progress is measured, both ends included
SHORT, SHORT_FALL = 3, math.log(0.95)  # a fall by less over so many is no progress
RETRIES = 1  # times that a sample goes on by the other means instead of stalling
ALONE = 60  # evaluations back at plain iteration, and a wait for a look, that leave it alone
PATIENCE = 100  # evaluations that the progress may still need, where Newton steps are allowed


@dataclass(frozen=True, kw_only=True)
class Auto(Solver):
    """Plain iteration, accelerated from where that pays: each sample by how it goes. The default of
    `fixed_point` and `DEQ`.

    1. Plain iteration z <- f(z). After 6, 12, 24, ... evaluations a sample looks at the contraction
       that it has seen since half as many, and goes on for as long as that would bring it to its
       goal within 80 evaluations more, and within half of the budget that is left. A sample of 1024
       entries or more, for which f is taken to be dearer than what comes with it, leaves after its
       second evaluation, or after its third where entries have come to rest (see below).
    2. `Anderson` acceleration, from the iterates that have been kept: at every evaluation for such
       a large sample, and for one whose residual grows fast by plain steps; at every third one for
       others, which takes about as many evaluations at a third of the cost beside them.
    3. With `newton`, `NewtonKrylov` for a sample whose residual has fallen by less than 5 % in 12
       evaluations, or by its fall over the last 18 would not reach its goal within the budget, or
       within 100 evaluations. It starts at the best iterate, and stays. Without it a sample of the
       first kind goes back to plain iteration. It looks again after 3, 6, 12, ... evaluations more:
       five times at whether its residual has grown above that of the start, then as in 1. One that
       would be called stalled goes on by the other means, once, and not in the first 60.

    A signal that travels through a nearly nilpotent Jacobian leaves entries behind that have come
    to rest, or change ever less beside those that it has not reached: each evaluation some more. A
    sample in which it would arrive within the budget stays plain: extrapolation mixes what lies
    before and behind the front, and takes three times as long.

    What is chosen depends on counts, residuals and the sizes of samples, never on a clock. What was
    spent in each phase is in `stats.choices`. Under `Unrolled` there is no third phase.

    History: `history` + 1 vectors of the size of z; once a sample is accelerated 2 x `history` + 2,
    up to `history` + 1 more as it extrapolates at every third evaluation, and 2 while another is
    plain; in the third phase that of `NewtonKrylov` beside it.

    Attributes:
        history: differences kept for the acceleration, >= 1.
        newton: solves for Newton's steps, as `linear` of `NewtonKrylov`; None: none are taken.
    """

    history: int = whole_field(20, 1)
    newton: LinearSolver | None = linear_field(None)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.newton is not None:
            refuse_ignored(self, "newton", *PER_STEP)

    @override
    def start(self, tracked: bool, jacobian: Jacobian | None) -> Stepper:
        return _Auto(self, tracked, jacobian)


class _Auto(Stepper):
    """All samples look at the same evaluations, so what a look costs is paid once for all; most of
    the time it finds that nothing changes.
    """

    phases = 3
    glances = True
    PER_SAMPLE = (
        *("large", "accelerated", "in_newton", "returned", "retries", "stalled", "ended"),
        *("previous", "unstable", "where", "extra"),
    )

    def __init__(self, solver: Auto, tracked: bool, jacobian: Jacobian | None) -> None:
        self.solver = solver
        self.tracked = tracked
        self.newton: NewtonStepper | None = None
        if jacobian is not None and solver.newton is not None:
            method = NewtonKrylov(max_evals=solver.max_evals, linear=solver.newton)
            self.newton = NewtonStepper(method, jacobian)
            self.looks_around = True
        self.evals = 0
        self.any_large = self.all_large = False
        self.large = torch.empty(0)  # which samples are
        self.iterates: list[Rows] = []  # the last ones, while no sample is accelerated
        self.anderson: AndersonStepper | None = None
        self.looks = _Looks(torch.empty(0))
        self.accelerated = self.in_newton = torch.empty(0)  # who is in the second, the third phase
        self.returned = torch.empty(0)  # when a sample last went back to plain iteration, or 0
        self.retries = torch.empty(0)  # times that a sample has gone on instead of stalling
        self.stalled: Tensor | None = None  # who does so in the next step; None: nobody
        self.any_plain, self.any_accelerated, self.any_in_newton = True, False, False
        self.count = _Count(torch.empty(0))
        self.ended = torch.empty(0)  # who has finished, and is still in the batch
        self.best: deque[Tensor] = deque(maxlen=LONG)  # log of the least tolerance ratio at each
        self.previous = torch.empty(0)  # length of the residual before
        self.unstable: Tensor | None = None  # plain steps make the residual grow; None: nobody's
        self.where: Tensor | None = None  # whom the step before has extrapolated; None: nobody
        self.extra = torch.zeros((), dtype=torch.int64)  # evaluations beside the loop's own

    def _begin(self, z: Rows) -> None:
        samples, device = z[0].shape[0], z[0].device
        self.accelerated = torch.zeros(samples, dtype=torch.bool, device=device)
        self.in_newton = self.ended = self.accelerated
        self.extra = torch.zeros(samples, dtype=torch.int64, device=device)
        self.returned = self.retries = self.extra
        self.count = _Count(self.extra)
        self.looks = _Looks(z[0][:, 0])
        self.large, self.any_large, self.all_large = _find_large(z, self.layout, self.accelerated)

    @override
    def residual(self, f: Rows, z: Rows) -> Rows:
        if not self.evals:
            self._begin(z)
        if self.anderson is None:
            return super().residual(f, z)
        return self.anderson.residual(f, z)

    @override
    def places(self, z: Rows) -> Rows:
        return [] if self.anderson is None else self.anderson.places(z)

    @override
    def heeds(self, evals: int) -> bool:
        return self.anderson is not None or evals in self.looks.at

    @override
    def step(self, now: Point) -> Rows:
        self.evals += 1
        plain, entering = now.f, None
        if self.anderson is not None:
            plain = self.anderson.store(now)
            if self.evals % PERIOD == 0 and self.any_accelerated and not self.all_large:
                self._watch_growth(now)
            if self.evals % JUDGED == 0 and self.any_accelerated:
                entering = self._judge(now)
        if self.stalled is not None:
            self._change(self.stalled, now)
            self.stalled = None
        if self.any_plain and self.evals in self.looks.at:
            self._look(now)
        if self.evals in (1, FIRST_LOOK // 2):
            self.looks.begin(_log(now.size), self.evals)
        if self.any_plain:
            self.iterates.append(now.z)
            del self.iterates[: -self.solver.history - 1 if self.anderson is None else -2]
        elif self.iterates:
            self.iterates = []
        if self.anderson is None:
            return plain
        self.where, self.previous = self._choose(), now.size.clone()
        out = plain
        if self.where is not None:
            out = self.anderson.extrapolate(plain, self.where)
        return self._take_newton_steps(now, out, entering) if self.any_in_newton else out

    # --- plain iteration --------------------------------------------------------------------------

    def _look(self, now: Point) -> None:
        """Who is to be accelerated from here on."""
        looks, size, first = self.looks, _log(now.size), self.evals == 2
        most, waited = self.solver.max_evals, self.evals - looks.marked
        slope = (size - looks.mark) / waited
        plain = ~(self.accelerated | self.ended | self.in_newton)
        those = plain if first else plain & (looks.due == self.evals)
        wants, left = slope > DOUBLES, torch.full_like(slope, math.inf)
        loud = looks.loud if first else count_loud(now)
        if not first or self.any_large:
            left = torch.where(slope < 0, self.tolerance_ratio(now).log() / -slope, math.inf)
            # At the first look the contraction is not yet known well.
            slow = 4 * SLOW if self.evals == FIRST_LOOK else SLOW
            slow = math.inf if first else min(slow, (most - self.evals) / 2)
            wants = wants | (left > torch.where(self.large, SLOW_LARGE, slow))
        if looks.doubles:  # what acceleration did not help is at first only saved from growth
            grows = (slope > GROWS) & (size > looks.first)
            wants = torch.where((self.returned > 0) & (waited < ALONE), grows, wants)
        wants = wants & those & torch.isfinite(size)
        any_wants = private.some(wants)
        if any_wants and private.some(poor := wants & (left > POOR)):
            fronts = poor & front_arrives(now, self.iterates[-2:], self.evals, most)
            if not first:
                fronts = fronts | (poor & looks.fall_quiet(loud, self.evals, most))
            wants = wants & ~fronts
            any_wants = private.some(wants)
            if first:  # one difference may be that of entries which f does not change
                looks.look_soon(fronts)
        if any_wants:
            self._accelerate(now, wants, slope)
        if not first:
            wait = torch.where(self.returned > 0, 2 * waited, self.evals)
            looks.note(those & ~wants, size, loud, self.evals, wait)
            self.any_plain = private.some(plain & ~wants)

    def _accelerate(self, now: Point, which: Tensor, slope: Tensor) -> None:
        if self.anderson is None:
            self._replay(now)
        self.accelerated, self.any_accelerated = self.accelerated | which, True
        self.count.enter(which, 1, self.evals)
        before = (torch.where(which, math.inf, error) for error in self.best)
        self.best = deque(before, maxlen=LONG)
        grows = which & (slope > (DOUBLES if self.evals == 2 else GROWS))
        if self.unstable is not None or private.some(grows):
            self.unstable = grows if self.unstable is None else self.unstable | grows

    def _replay(self, now: Point) -> None:
        """Hands the kept iterates to the acceleration, as if it had seen them."""
        method = Anderson(history=self.solver.history, max_evals=self.solver.max_evals)
        self.anderson = AndersonStepper(method, self.tracked)
        self.anderson.fused = self.fused
        for z, f in pairwise([*self.iterates, now.z, now.f]):
            residual = self.anderson.residual(f, z)
            self.anderson.store(Point(z, f, residual, now.size))
        self.previous = now.size.clone()

    def _change(self, which: Tensor, now: Point) -> None:
        """Plain iteration in place of acceleration, and the other way round."""
        plain, back = which & ~self.accelerated, which & self.accelerated
        if private.some(plain):
            self._accelerate(now, plain, torch.zeros_like(now.size))
            self.any_plain = private.some(~(self.accelerated | self.ended | self.in_newton))
        if private.some(back):
            self._go_back(back, now)

    # --- acceleration -----------------------------------------------------------------------------

    def _watch_growth(self, now: Point) -> None:
        grows = (now.size > math.exp(DOUBLES) * self.previous) & self.accelerated
        if self.where is not None:  # only a plain step tells of plain iteration
            grows = grows & ~self.where
        if private.some(grows):
            self.unstable = grows if self.unstable is None else self.unstable | grows

    def _judge(self, now: Point) -> Tensor | None:
        """Who gets nowhere; returns who comes into the third phase."""
        error = self.tolerance_ratio(now).log()
        if self.best:
            error = torch.minimum(error, self.best[-1])
        self.best.append(error)
        if len(self.best) < SHORT:
            return None
        lost = error - self.best[-SHORT] > SHORT_FALL
        if self.newton is None:
            back = lost & self.accelerated & ~self.ended
            if private.some(back):
                self._go_back(back, now)
            return None
        if len(self.best) == LONG:
            left = self.solver.max_evals - self.evals
            ahead = (left - self.extra).clamp(max=PATIENCE)
            fall = error - self.best[0]
            lost = lost | (error + fall * (ahead / ((LONG - 1) * JUDGED)) > 0)
        assert now.running is not None
        entering = lost & now.running & self.accelerated & ~self.in_newton
        if not private.some(entering):
            return None
        self.count.enter(entering, 2, self.evals)
        self.in_newton, self.any_in_newton = self.in_newton | entering, True
        self.accelerated = self.accelerated & ~entering
        self.any_accelerated = private.some(self.accelerated)
        return entering

    def _go_back(self, which: Tensor, now: Point) -> None:
        self.count.enter(which, 0, self.evals)
        self.accelerated = self.accelerated & ~which
        self.returned = torch.where(which, self.evals, self.returned)
        self.any_plain, self.any_accelerated = True, private.some(self.accelerated)
        wait = torch.full_like(self.looks.due, PERIOD)
        self.looks.doubles = True
        self.looks.note(which, _log(now.size), count_loud(now), self.evals, wait)

    def _choose(self) -> Tensor | None:
        """Who is extrapolated: out of turn, who is large or needs it; None: nobody."""
        if self.evals % PERIOD == 0 or self.all_large:
            return self.accelerated if self.any_accelerated else None
        where = self.large if self.any_large else None
        if self.unstable is not None:
            where = self.unstable if where is None else where | self.unstable
        if where is None:
            return None
        where = where & self.accelerated
        return where if private.some(where) else None

    def _take_newton_steps(self, now: Point, out: Rows, entering: Tensor | None) -> Rows:
        """Newton's steps, in the place of the others', for the samples of the third phase."""
        assert self.newton is not None and now.running is not None
        assert now.best is not None and now.best_size is not None
        which = now.running & self.in_newton
        back = torch.zeros_like(which) if entering is None else entering
        back = back & (now.size > 2 * now.best_size)
        left = self.solver.max_evals - self.evals - self.extra
        step = self.newton.advance(now, which & ~back, left)
        self.spent = self.newton.spent
        assert self.spent is not None
        self.extra = self.extra + self.spent
        return choose(which, choose(back, now.best, step), out)

    # --- what the loop asks for -------------------------------------------------------------------

    @override
    def retry(self, stalled: Tensor) -> Tensor | None:
        if self.newton is not None or not private.some(stalled):
            return None
        alone = (self.returned > 0) & (self.evals - self.returned < ALONE) & ~self.accelerated
        changed = stalled & ~alone & (self.retries < RETRIES)
        self.retries = self.retries + changed
        self.stalled = changed if private.some(changed) else None
        return changed | (stalled & alone)

    @override
    def end(self, here: Tensor) -> None:
        self.ended = self.ended.index_fill(0, here, True)
        if self.any_accelerated:
            self.accelerated = self.accelerated.index_fill(0, here, False)
            self.any_accelerated = private.some(self.accelerated)

    @override
    def choices(self) -> Tensor | None:
        """Evaluations in each phase, at the end of an evaluation that no step has followed; None
        while all have been in the first one."""
        if self.anderson is None:
            return None
        found = self.count.until(self.evals + 1)
        if not self.any_in_newton:
            return found
        return torch.cat([found[:, :2], found[:, 2:] + self.extra.unsqueeze(1)], dim=1)

    @override
    def ritz(self, here: Tensor) -> Tensor | None:
        return None if self.anderson is None else self.anderson.ritz(here)

    @override
    def select(self, index: Tensor) -> None:
        if self.anderson is not None:
            self.anderson.select(index)
        if self.newton is not None:
            self.newton.select(index)
        self.iterates = [select(z, index) for z in self.iterates]
        keep_samples(self, index)
        keep_samples(self.looks, index)
        keep_samples(self.count, index)
        self.best = deque(select(list(self.best), index), maxlen=LONG)


class _Looks:
    """When plain iteration is looked at, and what was seen at the latest look of each sample.

    Args:
        like: `(samples,)`.

    Attributes:
        at: the evaluations at which one is due for some sample.
        doubles: some sample looks at times of its own: 3, 6, 12, ... evaluations after the last.
        first: log of ||f - z|| at the start.
        mark, loud, marked: the same at the latest look, how many entries were loud, and when.
        due: when the next one is.
    """

    PER_SAMPLE = ("first", "mark", "loud", "marked", "due")

    def __init__(self, like: Tensor) -> None:
        self.at = {2, FIRST_LOOK}
        self.doubles = False
        self.first = self.mark = like
        self.loud = torch.full_like(like, math.inf)
        self.marked = torch.ones_like(like, dtype=torch.int64)
        self.due = torch.full_like(self.marked, FIRST_LOOK)

    def begin(self, size: Tensor, evals: int) -> None:
        self.mark, self.marked = size, torch.full_like(self.marked, evals)
        if evals == 1:
            self.first = size

    def look_soon(self, which: Tensor) -> None:
        self.due = torch.where(which, FIRST_LOOK // 2, self.due)
        self.at.add(FIRST_LOOK // 2)

    def fall_quiet(self, loud: Tensor, evals: int, most: int) -> Tensor:
        """Do so many entries grow quiet that all will within the budget?"""
        arrives = loud * (evals - self.marked) <= (self.loud - loud) * (most - evals)
        return grows_quiet(loud, self.loud) & arrives

    def note(self, which: Tensor, size: Tensor, loud: Tensor, evals: int, wait: Tensor) -> None:
        """These samples look at what happens from here on, after `wait` evaluations."""
        self.mark = torch.where(which, size, self.mark)
        self.loud = torch.where(which, loud, self.loud)
        self.marked = torch.where(which, evals, self.marked)
        self.due = torch.where(which, evals + wait, self.due)
        self.at.add(2 * evals)
        if self.doubles:
            self.at |= {evals + PERIOD * 2**k for k in range(10)}


class _Count:
    """Evaluations that each sample has spent in each of the three phases.

    Args:
        like: `(samples,)`.
    """

    PER_SAMPLE = ("counts", "phase")

    def __init__(self, like: Tensor) -> None:
        # Less the number at which the present phase began; and 1 for that one, else 0.
        self.counts = torch.zeros(len(like), 3, dtype=torch.int64, device=like.device)
        self.phase = torch.zeros_like(self.counts)
        self.phase[:, 0] = 1

    def enter(self, which: Tensor, phase: int, evals: int) -> None:
        """These samples spend what follows evaluation `evals` in another phase."""
        phases = torch.arange(3, device=which.device)
        new = torch.where(which.unsqueeze(1), (phases == phase).long(), self.phase)
        self.counts = self.counts + evals * (self.phase - new)
        self.phase = new

    def until(self, evals: int) -> Tensor:
        """`(samples, 3)` of the first `evals` evaluations."""
        return self.counts + evals * self.phase


def _find_large(z: Rows, layout: Layout | None, like: Tensor) -> tuple[Tensor, bool, bool]:
    """Which samples have at least `LARGE` entries, whether any has, and whether all have."""
    size = entries(z)
    groups = None if layout is None else layout.coupled
    if isinstance(groups, Groups):
        large = size // groups.longest * groups.sizes >= LARGE
        return large, private.some(large), private.every(large)
    every = size >= LARGE
    return torch.full_like(like, every), every, every


def _log(size: Tensor) -> Tensor:
    return size.detach().log()
