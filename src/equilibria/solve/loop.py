"""The one loop that all forward solvers share.

Evaluating, counting, watching each sample, keeping the best iterate and freezing what has finished
stand here once; a solver contributes its next iterate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.convergence import Criterion
from equilibria.solve.estimate import WARNED_ERROR, estimate_error, may_be_wrong
from equilibria.solve.glance import Glance, Look
from equilibria.solve.monitor import Monitor, Terms
from equilibria.solve.options import is_foreign
from equilibria.solve.rows import Rows, check_like, choose, length, select, subtract
from equilibria.solve.solvers import Inverse, Jacobian, Point, Solver, Stepper
from equilibria.solve.status import Status, warn


@dataclass(frozen=True)
class Run:
    """The outcome of a solve, one entry a sample.

    Attributes:
        value: the answers: rows from `iterate` and from linear solvers, leaves from the functions
            that solve a `Problem`.
        status: `Status` codes, int8.
        reason: `Reason` codes, int8.
        evals: evaluations, or products, that each sample took part in, int64.
        residual: relative residuals of the answers.
        states: the iterates that were asked for, each like `value`.
        extras: further fields of `Stats`, by name.
        inverse: what Broyden's method has learned of (I - df/dz)^-1; None where nobody asked.
        size: the size of f at the start that a warm start keeps, see `Reference.size_to_keep`; None
            of a linear solver.
        course: what `Stats.error` is computed from, in one of two forms. Of `iterate`: products
            `(samples, 9)` of the last differences, see `estimate._multiply`. Of a linear solver:
            the estimated errors `(samples,)` themselves. `estimate_error` takes both. None where
            nothing is known.
    """

    value: Rows
    status: Tensor
    reason: Tensor
    evals: Tensor
    residual: Tensor
    states: tuple[Rows, ...] = ()
    extras: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    inverse: Inverse | None = None
    size: Tensor | None = None
    course: Tensor | None = None


def warn_if_far_off(run: Run, criterion: Callable[[], Criterion], what: str, advice: str) -> None:
    """Warn where a sample has converged whose estimated error is above `WARNED_ERROR` times the
    tolerance."""
    if run.course is None or not may_be_wrong(run.course, run.residual):
        return
    by, size = criterion(), length(run.value)
    tolerance = by.loosest + torch.where(size > 0, by.absolute(run.value) / size, 0.0)
    limit = WARNED_ERROR * torch.clamp(tolerance, min=torch.finfo(run.residual.dtype).eps)
    error = estimate_error(run.course, run.residual, rounded=True)
    if private.some((run.status == Status.CONVERGED) & (error > limit)):
        warn(  # the same words each time, which Python then shows once
            f"{what}: some samples CONVERGED whose estimated error (stats.error) is more than "
            f"{WARNED_ERROR:g} times the tolerance, which is one of the residual. {advice}"
        )


def iterate(
    solver: Solver,
    evaluate: Callable[[Rows], Rows],
    z: Rows,
    f: Rows | None,
    terms: Terms,
    *,
    states: tuple[int, ...] = (),
    leave: Callable[[Tensor], None] | None = None,
    jacobian: Jacobian | None = None,
    keeps_inverse: bool = False,
) -> Run:
    """Iterates until every sample has finished.

    Args:
        evaluate: f on rows.
        z: the start.
        f: f(z), where the caller knows it; it counts as the first evaluation.
        states: evaluations after which the iterate is recorded; of a sample that has finished, its
            value, but for one that the budget ends there.
        leave: called with the samples to keep when finished ones leave the batch, so that
            `evaluate` can drop them too; None: they stay, frozen.
        jacobian: df/dz by its products, for the methods that ask for them.
        keeps_inverse: return what the method has learned of (I - df/dz)^-1; not with `leave`.
    """
    steps_on, tracked = terms.returns == "next", terms.tracked
    assert not tracked or steps_on  # a tracked outcome keeps no answers to return
    wanted = {k for k in states if k > 0}
    recorded = {0: z}
    stepper = _start(solver, terms, jacobian)
    foreign = is_foreign(stepper)
    monitor = Monitor(solver, stepper, z, terms)
    stepper.fused = monitor.fused
    outcome = monitor.outcome
    stepper.tolerance_ratio = monitor.tolerance_ratio()
    # An inverse is to learn nothing from steps after a sample's last.
    at_once = bool(states) or keeps_inverse or _looks_at_once(monitor, z)
    look = Glance.of(monitor, stepper, leave is not None) if at_once else None
    if look is None:
        look = Look(monitor, stepper, monitor.observe if at_once else Deferred(monitor).observe)
    while True:
        image = evaluate(z) if f is None else f
        f = None
        point, nothing = look.see(z, image, monitor.evals + 1 in wanted)
        if nothing:  # has happened, as it mostly goes
            z = look.freeze(stepper.step(point), image)
            continue
        done, noted = look.observe(point), monitor.evals in wanted
        if done and not (noted or steps_on):
            break
        if stepper.looks_around:
            point = monitor.around(point)
        proposal = stepper.step(point)
        if foreign:
            _check_step(solver, proposal, z)
        after = proposal
        if (noted or steps_on) and (done or monitor.any_finished):
            after = choose(monitor.moves, proposal, monitor.answer[0])
        if noted:
            recorded[monitor.evals] = outcome.among_all(after)
        frozen = outcome.finished is not None and not steps_on
        z = outcome.freeze(proposal, point.f) if frozen else after
        if done:
            break
        if leave is not None and monitor.few_running():
            look.tell()
            index = monitor.drop_finished()
            leave(index)
            _drop(stepper, index)
            stepper.layout = monitor.judge.criterion.layout
            stepper.tolerance_ratio = monitor.tolerance_ratio()
            z = select(z, index)
    value = z if steps_on else outcome.value
    return Run(
        value,
        outcome.status,
        outcome.reason,
        outcome.evals,
        outcome.residual,
        tuple(recorded.get(k, value) for k in states),
        monitor.observer.results(outcome.evals, 0 if tracked else stepper.phases),
        stepper.find_inverse() if keeps_inverse else None,
        outcome.size,
        None if tracked else monitor.course.results(outcome.residual),
    )


def _start(solver: Solver, terms: Terms, jacobian: Jacobian | None) -> Stepper:
    stepper = solver.start(terms.tracked, jacobian)
    if not isinstance(cast(Any, stepper), Stepper):
        raise TypeError(f"{type(solver).__name__}.start returned {stepper!r}: expected a Stepper")
    stepper.layout = terms.layout
    return stepper


def _check_step(solver: Solver, proposal: Rows, z: Rows) -> None:
    """Raises where a method of a user's own has not returned an iterate like the last one."""
    what = f"the step of {type(solver).__name__}"
    check_like(what, proposal, z, "a matrix (samples, entries) for each leaf of the state")


def _looks_at_once(monitor: Monitor, z: Rows) -> bool:
    """Is every evaluation asked for, or can it be looked at without waiting for a device?"""
    return (
        private.free_to_read(z[0])
        or monitor.returns == "next"
        or monitor.terms.trace
        or monitor.stepper.looks_around
        or monitor.judge.criterion.by_part
    )


def _drop(stepper: Stepper, index: Tensor) -> None:
    """Keeps the samples named by `index`, and what was spent on each."""
    spent = stepper.spent
    stepper.select(index)
    if spent is not None:
        stepper.spent = spent.index_select(0, index)


BLOCK = 4  # evaluations that are looked at together
NEAR = 100.0  # times the tolerance: nearer than this a sample may arrive within a block


class Deferred:
    """A `Monitor` that is asked about several evaluations at once, by a single number.

    The method goes on meanwhile. If all of a block was uneventful, nothing was missed. If not, the
    block is gone through one by one, as it should have been, and what a sample that ended has done
    since is undone: a sample's answer, status and counts are the same as if each evaluation had
    been looked at; but up to `BLOCK` - 1 evaluations may be spent for nothing, which is why every
    evaluation is looked at once a sample has come near its tolerance.

    While it waits, up to `BLOCK` iterates and their images are held. The evaluations spent for
    nothing are not counted: no answer depends on them.

    Evaluations that the monitor wants to see (the last, and those of a search for a stall) end a
    block.
    """

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.pending: list[tuple[Point, Tensor]] = []  # with the lengths of f(z)
        self.block = 1

    def observe(self, point: Point) -> bool:
        """See `Monitor.observe`."""
        monitor = self.monitor
        # The residual lies where the method needs the place: it is made anew if it is asked for.
        self.pending.append((point._replace(residual=[]), length(point.f)))
        ordinary = monitor.evals + len(self.pending) < monitor.next_look and monitor.spent is None
        if ordinary and len(self.pending) < self.block:
            return False
        pending, self.pending = self.pending, []
        if ordinary and self._is_uneventful(pending):
            monitor.pass_over([point for point, _ in pending], pending[-1][1])
            return False
        self.block = 1
        return any(monitor.observe(self._undone(each)) for each, _ in pending)

    def _is_uneventful(self, pending: list[tuple[Point, Tensor]]) -> bool:
        monitor = self.monitor
        measure = monitor.judge.criterion.measure
        errors = [measure(p.residual, p.f, p.size, scale).tolerance_ratio for p, scale in pending]
        course = torch.stack([monitor.best.error, *errors])
        sizes = torch.stack([point.size for point, _ in pending])
        closer = (course[1:] <= course[:-1]) & (course[1:] >= monitor.arrival)
        uneventful = closer & (sizes <= monitor.judge.top) & (sizes >= monitor.low)
        distance = torch.where(monitor.is_running, errors[-1] / monitor.arrival, torch.inf).amin()
        calm, nearest = torch.stack([uneventful.all().to(distance.dtype), distance]).cpu()
        self.block = BLOCK if float(nearest) > NEAR else 1
        return bool(calm)

    def _undone(self, point: Point) -> Point:
        """The point with the samples that have ended at their answers; their residual is infinite,
        so that no judgement is built on it."""
        point = point._replace(residual=subtract(point.f, point.z))
        if (finished := self.monitor.outcome.finished) is None:
            return point
        index, rows = finished
        return point._replace(
            z=[row.index_copy(0, index, at) for row, at in zip(point.z, rows, strict=True)],
            size=point.size.index_fill(0, index, torch.inf),
        )
