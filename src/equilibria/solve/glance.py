"""A look at an evaluation in one operation, which tells whether anything has happened.

It decides nothing but who has arrived: where a sample is lost, or is due for a closer look, the
`Monitor` sees to it as it does without the operators of `fused`, with what has been measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve.estimate import FORMS, POINTS
from equilibria.solve.monitor import Monitor
from equilibria.solve.rows import Rows, choose, length, subtract
from equilibria.solve.solvers import Point, Stepper

UNSUPPORTED, SOME_BACK, SOME_ARRIVED, ALL_ARRIVED, EVENT = -1, 1, 2, 4, 8  # 0: all came closer
ERROR, RELATIVE, SIZE, SCALE, BETTER, _, ENDED = range(6, 13)  # rows of the table of samples


class Look:
    """Measures each evaluation by torch's own operations, and has every one watched.

    Args:
        watch: says of an evaluated iterate whether no sample runs any more.
    """

    def __init__(self, monitor: Monitor, stepper: Stepper, watch: Callable[[Point], bool]) -> None:
        self.monitor, self.stepper = monitor, stepper
        self.watch = watch

    def see(self, z: Rows, f: Rows, due: bool) -> tuple[Point, bool]:
        """The evaluated iterate, and whether there is nothing to see to.

        Args:
            due: it is to be watched, whatever has happened.
        """
        del due
        residual = self.stepper.residual(f, z)
        tracked = self.monitor.tracked
        size = length([row.detach() for row in residual] if tracked else residual)
        return Point(z, f, residual, size), False

    def observe(self, point: Point) -> bool:
        """Sees to what has happened; True when no sample runs any more."""
        return self.watch(point)

    def freeze(self, z: Rows, f: Rows) -> Rows:
        """The next iterate where there was nothing to see to; see `Outcome.freeze`."""
        del f
        return z

    def tell(self) -> bool:
        """Tells the monitor all that it has not heard; True when no sample runs any more."""
        return False


class Glance(Look):
    """Measures by the operators; of most evaluations the monitor hears nothing.

    Between events the best ratios are kept in a table, and so is who has arrived; the monitor is
    told before it is asked.

    Args:
        at_once: it is told whenever a sample arrives.
    """

    def __init__(self, monitor: Monitor, stepper: Stepper, at_once: bool) -> None:
        super().__init__(monitor, stepper, monitor.observe)
        self.at_once = at_once
        self._operators: Any = torch.ops.equilibria
        self._look = self._operators.look.default
        self._table: Tensor | None = None
        self._size = torch.empty(0)  # a row of the table
        self._limits: list[Tensor] = []  # rows of the table that do not change
        self._scale: Tensor | None = None  # lengths of the newest f; None: not known
        self._only_arrived = False  # has nothing else happened?
        # Of the samples that have arrived, and of which the monitor has not heard; None: nobody.
        self._answers: Rows | None = None
        self._products = torch.empty(0)

    @classmethod
    def of(cls, monitor: Monitor, stepper: Stepper, at_once: bool) -> Glance | None:
        """None where the operators do not serve."""
        terms = monitor.terms
        closely = terms.trace or terms.returns == "next" or monitor.course.limit is not None
        around = stepper.looks_around or monitor.judge.criterion.by_part or not stepper.glances
        serves = monitor.fused and not (closely or around)
        return cls(monitor, stepper, at_once) if serves else None

    @override
    def see(self, z: Rows, f: Rows, due: bool) -> tuple[Point, bool]:
        monitor, stepper = self.monitor, self.stepper
        self._scale, self._only_arrived = None, False
        evals = monitor.evals + 1
        if evals == 1:  # nothing to measure from yet
            return super().see(z, f, due)
        table = self._fill() if self._table is None else self._table
        due = due or evals >= monitor.next_look
        places, last = stepper.places(z), len(z) - 1
        verdict = UNSUPPORTED
        for leaf, row in enumerate(z):
            place, judges = places[leaf] if places else None, leaf == last and not due
            verdict = self._look(row, f[leaf], place, table, leaf == 0, evals if judges else 0)
            if verdict == UNSUPPORTED:
                return super().see(z, f, due)
        if due or verdict == EVENT:
            self._scale = table[SCALE]
            return Point(z, f, places or subtract(f, z), self._size), False
        monitor.evals = evals
        monitor.course.points.append((z, f))
        best = monitor.best
        best.z = choose(table[BETTER] > 0, z, best.z) if verdict & SOME_BACK else z
        if verdict >= SOME_ARRIVED:
            self._arrive(table, z)
        heard = self._answers is None or not (
            verdict & ALL_ARRIVED or self.at_once or stepper.heeds(evals)
        )
        self._only_arrived = not heard
        return Point(z, f, places, self._size), heard

    @override
    def observe(self, point: Point) -> bool:
        done = self.tell()
        return done if self._only_arrived else self.monitor.observe(point, self._scale)

    @override
    def freeze(self, z: Rows, f: Rows) -> Rows:
        outcome = self.monitor.outcome
        if outcome.finished is not None:
            z = outcome.freeze(z, f)
        if self._answers is None:
            return z
        out: Rows = []
        for row, answers in zip(z, self._answers, strict=True):
            row = row.contiguous()
            out.append(torch.empty_like(row))
            self._serve("restore", row, answers, self._table, out[-1])
        return out

    @override
    def tell(self) -> bool:
        table, self._table = self._table, None
        if table is None:
            return False
        monitor, none = self.monitor, self._answers is None
        monitor.best.error, monitor.best.relative = table[ERROR], table[RELATIVE]
        if none:
            return False
        self._answers = None
        here, evals = table[ENDED].nonzero().flatten(), table[ENDED].long()
        return monitor.end_arrived(here, evals, table[RELATIVE], self._products)

    def _arrive(self, table: Tensor, z: Rows) -> None:
        """Keeps the answers of the samples that have just arrived."""
        if self._answers is None:
            self._answers = [torch.empty_like(row) for row in z]
            self._products = torch.empty(table.shape[1], FORMS, dtype=torch.float64)
        points = self.monitor.course.points
        points = [points[0]] * (POINTS - len(points)) + list(points)
        for leaf, answers in enumerate(self._answers):
            vectors = [x[leaf].contiguous() for point in points for x in point]
            self._serve("arrive", *vectors, answers, table, self._products, leaf == 0)

    def _serve(self, name: str, *arguments: Any) -> None:
        if not getattr(self._operators, name).default(*arguments):
            raise RuntimeError(f"equilibria-kernels: {name} was given rows that it cannot work on")

    def _fill(self) -> Tensor:
        monitor = self.monitor
        best, judge, low = monitor.best, monitor.judge, monitor.low
        if not self._limits or self._limits[0].shape != low.shape:
            tolerances = judge.criterion.tolerances(best.z)
            zeros = torch.zeros_like(low)
            self._limits = [judge.top, judge.growth_limit, *(zeros + x for x in tolerances)]
        room = best.relative  # of what is measured
        rows = [monitor.arrival, low, *self._limits, best.error, best.relative, *[room] * 4]
        self._table = table = torch.stack([*rows, torch.zeros_like(low)])
        self._size = table[SIZE]
        return table
