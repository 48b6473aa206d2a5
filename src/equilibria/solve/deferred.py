"""Looking at several evaluations at a time, where every look at the device waits for it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from equilibria.solve.monitor import Monitor
from equilibria.solve.rows import length, subtract
from equilibria.solve.solvers.base import Point

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
        self.pending.append((replace(point, residual=[]), length(point.f)))
        ordinary = monitor.is_ordinary(monitor.evals + len(self.pending))
        if ordinary and len(self.pending) < self.block:
            return False
        pending, self.pending = self.pending, []
        if ordinary and self._is_uneventful(pending):
            monitor.pass_over(len(pending), *pending[-1])
            return False
        self.block = 1
        return any(monitor.observe(self._undone(each)) for each, _ in pending)

    def _is_uneventful(self, pending: list[tuple[Point, Tensor]]) -> bool:
        monitor = self.monitor
        errors = [monitor.measure(point, scale).error_ratio for point, scale in pending]
        course = torch.stack([monitor.error, *errors])
        sizes = torch.stack([point.size for point, _ in pending])
        closer = (course[1:] <= course[:-1]) & (course[1:] >= monitor.floor)
        uneventful = closer & (sizes <= monitor.top) & (sizes >= monitor.low)
        distance = torch.where(monitor.running, errors[-1] / monitor.floor, torch.inf).amin()
        calm, nearest = torch.stack([uneventful.all().to(distance.dtype), distance]).cpu()
        self.block = BLOCK if float(nearest) > NEAR else 1
        return bool(calm)

    def _undone(self, point: Point) -> Point:
        """The point with the samples that have ended at their answers; their residual is infinite,
        so that no judgement is built on it."""
        point = replace(point, residual=subtract(point.f, point.z))
        if self.monitor.finished is None:
            return point
        index, rows = self.monitor.finished
        return replace(
            point,
            z=[row.index_copy(0, index, at) for row, at in zip(point.z, rows, strict=True)],
            size=point.size.index_fill(0, index, torch.inf),
        )
