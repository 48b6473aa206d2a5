"""A solver that chooses."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.anderson import Anderson, AndersonStepper
from equilibria.solve.linear import LinearSolver
from equilibria.solve.newton import NewtonKrylov, NewtonStepper, check_linear, krylov
from equilibria.solve.options import check_whole
from equilibria.solve.rows import Rows, choose, keep_samples
from equilibria.solve.solvers import Jacobian, Point, Solver, Stepper

PERIOD = 3  # evaluations between two looks at how it goes
NEAR = 3.0  # plain evaluations from the goal at which no other step gains anything
KEEN = 0.3  # what an extrapolation leaves of the residual, at most, to be followed by another
LOOKS = 6  # looks over which the progress is measured, both ends included
SHORT, SHORT_FALL = 4, math.log(0.95)  # a fall by less over so many looks is no progress
PATIENCE = 100  # evaluations that the progress may still need
NEVER = 2**62


@dataclass(frozen=True, kw_only=True)
class Auto(Solver):
    """Plain iteration, Anderson acceleration or Newton-Krylov: each sample by how it goes.

    1. Plain iteration, for a sample that it brings to its goal within 3 evaluations more.
    2. Else as `AlternatingAnderson`, an extrapolation at every third evaluation, which converges
       about as often as one at every evaluation and costs a third; at every evaluation for a sample
       whose residual grows by plain steps, and again at once after one that left less than a third
       of it.
    3. `NewtonKrylov`, for a sample whose residual has fallen by less than 5 % in 9 evaluations, or
       by its fall over the last 15 would not reach its goal within the budget, or within 100
       evaluations. It starts at the best iterate, and stays.

    What was spent in each phase is in `stats.choices`. Under `Unrolled` there is no third phase.

    History: 2 x `history` + 2 vectors of the size of z; in the third phase that of `NewtonKrylov`
    beside it.

    Attributes:
        history: differences kept by the acceleration, >= 1.
        linear: solves for Newton's steps; see `NewtonKrylov`.
    """

    history: int = 5
    linear: LinearSolver = field(default_factory=krylov)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "history", 1)
        check_linear(self)

    @override
    def start(self, tracked: bool, jacobian: Jacobian | None) -> Stepper:
        return _Auto(self, tracked, jacobian)


class _Auto(Stepper):
    """The differences are stored from the first evaluation on, so that the second phase has them.

    All samples look at the same evaluations, so what a look costs is paid once for all; most of the
    time it finds that nothing changes.
    """

    looks_around = True

    def __init__(self, solver: Auto, tracked: bool, jacobian: Jacobian | None) -> None:
        self.solver = solver
        self.anderson = AndersonStepper(
            Anderson(history=solver.history, max_evals=solver.max_evals), tracked
        )
        self.newton: NewtonStepper | None = None
        if jacobian is not None:
            method = NewtonKrylov(max_evals=solver.max_evals, linear=solver.linear)
            self.newton = NewtonStepper(method, jacobian)
        self.evals = 0
        self.previous = torch.empty(0)  # length of the residual before
        self.best: deque[Tensor] = deque(maxlen=LOOKS)  # log of the least error ratio, at each look
        # The evaluations after which a sample left the first phase and came into the third.
        self.accelerated = self.hard = torch.empty(0)
        self.any_fast, self.any_hard = True, False
        self.unstable: Tensor | None = None  # plain steps make the residual grow; None: nobody's
        self.wanted = False  # has the step before extrapolated, and whom; None: all
        self.where: Tensor | None = None
        self.total = torch.zeros((), dtype=torch.int64)  # evaluations beside the loop's own

    @override
    def residual(self, f: Rows, z: Rows) -> Rows:
        if not self.evals:
            samples, device = z[0].shape[0], z[0].device
            self.accelerated = self.hard = torch.full((samples,), NEVER, device=device)
            self.total = torch.zeros_like(self.hard)
        return self.anderson.residual(f, z)

    @override
    def step(self, now: Point) -> Rows:
        self.evals += 1
        plain = self.anderson.store(now)
        looks = self.evals % PERIOD == 0
        if looks or self.evals == 2:
            self._watch_growth(now)
        entering = self._look(now) if looks else None
        self._choose(now, looks)
        self.previous = now.size
        out = self.anderson.extrapolate(plain, self.where) if self.wanted else plain
        return self._solved(now, out, entering) if self.any_hard else out

    def _watch_growth(self, now: Point) -> None:
        grows = now.size > self.previous
        if not private.some(grows):
            return
        if self.wanted:  # only a plain step tells of plain iteration
            grows = torch.zeros_like(grows) if self.where is None else grows & ~self.where
        self.unstable = grows if self.unstable is None else self.unstable | grows
        self._leave_first(self.unstable)

    def _leave_first(self, which: Tensor) -> None:
        leaves = which & (self.accelerated > self.evals)
        self.accelerated = torch.where(leaves, self.evals, self.accelerated)
        self.any_fast = private.some(self.accelerated > self.evals)

    def _look(self, now: Point) -> Tensor | None:
        """Who needs another phase; returns who comes into the third."""
        assert now.error_ratio is not None and now.running is not None
        error = now.error_ratio.log()
        if self.any_fast:
            self._leave_first(~(error <= NEAR * (self.previous / now.size).log()))
        if self.best:
            error = torch.minimum(error, self.best[-1])
        self.best.append(error)
        if len(self.best) < SHORT or self.newton is None:
            return None
        lost = error - self.best[-SHORT] > SHORT_FALL
        if len(self.best) == LOOKS:
            left = self.solver.max_evals - self.evals
            ahead = (left - self.total).clamp(max=PATIENCE)
            fall = error - self.best[0]
            lost = lost | (error + fall * (ahead / ((LOOKS - 1) * PERIOD)) > 0)
        if not private.some(lost):
            return None
        entering = lost & now.running & (self.hard > self.evals)
        self.hard = torch.where(entering, self.evals, self.hard)
        self.any_hard = private.some(self.hard <= self.evals)
        return entering

    def _choose(self, now: Point, looks: bool) -> None:
        """Who is extrapolated: at a look, all in the second phase; out of turn, who needs it."""
        where = self.unstable
        if looks:
            where = self.accelerated <= self.evals if self.any_fast else None
        elif self.wanted:
            keen = now.size < KEEN * self.previous
            if self.where is not None:
                keen = keen & self.where
            where = keen if where is None else where | keen
        elif where is None:
            self.wanted = False
            return
        if self.any_hard:
            able = self.hard > self.evals
            where = able if where is None else where & able
        self.where = where
        self.wanted = where is None or private.some(where)

    def _solved(self, now: Point, out: Rows, entering: Tensor | None) -> Rows:
        """Newton's steps, in the place of the others', for the samples of the third phase."""
        assert self.newton is not None and now.running is not None
        assert now.best is not None and now.best_size is not None
        which = now.running & (self.hard <= self.evals)
        back = torch.zeros_like(which) if entering is None else entering
        back = back & (now.size > 2 * now.best_size)
        step = self.newton.advance(
            now, which & ~back, self.solver.max_evals - self.evals - self.total
        )
        self.spent = self.newton.spent
        assert self.spent is not None
        self.total = self.total + self.spent
        return choose(which, choose(back, now.best, step), out)

    @override
    def choices(self) -> Tensor | None:
        """Evaluations in each phase, at the end of an evaluation that no step has followed."""
        evals = torch.full_like(self.hard, self.evals + 1)
        third = (evals - self.hard).clamp(min=0)
        first = torch.minimum(torch.minimum(self.accelerated, self.hard), evals)
        return torch.stack([first, evals - first - third, third + self.total], dim=1)

    @override
    def ritz(self, here: Tensor) -> Tensor | None:
        return self.anderson.ritz(here)

    @override
    def select(self, index: Tensor) -> None:
        self.anderson.select(index)
        if self.newton is not None:
            self.newton.select(index)
        names = "previous", "accelerated", "hard", "unstable", "where", "total"
        keep_samples(self, index, *names)
        self.best = deque((row.index_select(0, index) for row in self.best), maxlen=LOOKS)
