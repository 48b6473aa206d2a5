"""Broyden's method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import linalg, private
from equilibria.solve.rows import History, Rows, add_scaled, choose, select
from equilibria.solve.solvers.base import Point, Solver, Stepper, check_whole

# Below this the secant update divides by rounding: the sample starts its memory afresh.
SMALLEST_PIVOT = 1e-4
# A memory's worth of steps that leaves more than this of the best residual has brought nothing.
STALL = 0.99


@dataclass(frozen=True, kw_only=True)
class Broyden(Solver):
    """Broyden's ("good") method on g(z) = f(z) - z, from B_0 = -I.

    The inverse Jacobian of Bai 2022 (thesis), eq. 2.12 in the compact form of Kelley (1995, sec.
    7.3): with full steps s_k = -B_k g_k the rank-one updates are products of
    (I + s_{k+1} s_k^T / s_k^T s_k), so the steps alone tell all, and one vector an evaluation is
    stored instead of two. A new step costs one pass of inner products over the history, one small
    triangular solve and one pass to combine.

    With a limited memory the method restarts when the memory is full: at the best iterate, with
    B = -theta I. theta is 1, and halved after each memory's worth of steps that brought nothing, or
    the restart would take the same path again. Writing over the oldest update instead, as is often
    done, leaves a matrix that satisfies no secant equation, and diverges.

    History: one vector of the size of z an evaluation, up to `memory`, and then three more.

    Attributes:
        memory: steps kept before a restart; None keeps all and never restarts.
    """

    memory: int | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.memory is not None:
            check_whole(self, "memory", 1)

    @override
    def start(self, tracked: bool) -> Stepper:
        return _Broyden(self.memory, tracked)


class _Broyden(Stepper):
    def __init__(self, memory: int | None, tracked: bool) -> None:
        self.memory = memory
        self.steps = History(memory, tracked)
        self.last: Rows | None = None  # the newest step
        self.system = Triangle(tracked)
        self.weights = torch.empty(0)  # 1 / s_j . s_j; zero where a sample has forgotten s_j
        self.best: Point | None = None  # where a restart begins
        self.before: Tensor | None = None  # the size of its residual at the restart before
        self.theta: Tensor | None = None  # B_0 = -theta I; None: 1

    @override
    def step(self, now: Point) -> Rows:
        if self.memory is not None:
            self._keep_best(now)
        if self.last is None:
            self.weights = now.size.new_empty(now.size.shape[0], 0, dtype=torch.float64)
            return self._push(now.residual, now.z)
        if self.memory is not None and len(self.steps) >= self.memory:
            return self._restart(now)
        residual = self._scaled(now.residual)
        coefficients = self._coefficients(residual)  # c_j / s_j . s_j
        pivot = 1 - coefficients[:, -1]
        usable = pivot.abs() > SMALLEST_PIVOT
        self.weights = torch.where(usable.unsqueeze(1), self.weights, 0.0)
        self.system.forget(usable)
        # w = g + sum_j s_{j+1} c_j / s_j . s_j over the steps after the first
        shifted = torch.zeros_like(coefficients)
        shifted[:, 1:] = coefficients[:, :-1]
        shifted = torch.where(usable.unsqueeze(1), shifted, 0.0)
        scale = torch.where(usable, pivot, 1.0).reciprocal().to(residual[0].dtype)
        direction = add_scaled(residual, 1.0, self.steps.combine(shifted))
        return self._push([row * scale.unsqueeze(1) for row in direction], now.z)

    def _coefficients(self, residual: Rows) -> Tensor:
        """c_j / s_j . s_j, with c_j = s_j . w_j and w_{j+1} = w_j + s_{j+1} c_j / s_j . s_j.

        Written out, c solves the unit lower triangular system
        c_j - sum_{i<j} (s_j . s_{i+1}) / (s_i . s_i) c_i = s_j . g, which gains a row a step.
        """
        assert self.last is not None
        products = self.steps.dots(self.last, residual).double()
        newest, right = products[:, 0], products[:, 1]
        square = newest[:, -1:]
        weight = torch.where(square > 0, square.clamp_min(1e-300).reciprocal(), 0.0)
        self.system.append(-newest[:, 1:] * self.weights)
        self.weights = torch.cat([self.weights, weight], dim=1)
        return self.system.solve(right) * self.weights

    def _push(self, step: Rows, z: Rows) -> Rows:
        self.steps.push(step)
        self.last = step
        return add_scaled(z, 1.0, step)

    def _keep_best(self, now: Point) -> None:
        if self.best is None:
            self.best = now
            return
        old, better = self.best, now.size < self.best.size
        if private.every(better):
            self.best = now
        elif private.some(better):
            self.best = Point(
                choose(better, now.z, old.z),
                now.f,  # not needed, and so not kept
                choose(better, now.residual, old.residual),
                torch.where(better, now.size, old.size),
            )

    def _restart(self, now: Point) -> Rows:
        best = self.best
        assert best is not None
        self.steps.clear()
        self.system.clear()
        self.weights = self.weights[:, :0]
        if self.before is not None:
            theta = torch.ones_like(self.before) if self.theta is None else self.theta
            self.theta = torch.where(best.size < STALL * self.before, 1.0, theta / 2)
        self.before = best.size
        behind = now.size > 2 * best.size
        residual = choose(behind, best.residual, now.residual)
        return self._push(self._scaled(residual), choose(behind, best.z, now.z))

    def _scaled(self, residual: Rows) -> Rows:
        """-B_0 g."""
        if self.theta is None:
            return residual
        return [row * self.theta.unsqueeze(1) for row in residual]

    @override
    def select(self, index: Tensor) -> None:
        self.steps.select(index)
        if self.best is not None:
            self.best = self.best.select(index)
        if self.last is not None:
            self.last = select(self.last, index)
        if self.before is not None:
            self.before = self.before.index_select(0, index)
        if self.theta is not None:
            self.theta = self.theta.index_select(0, index)
        self.system.select(index)
        self.weights = self.weights.index_select(0, index)


class Triangle:
    """Unit lower triangular systems `(samples, k, k)` that gain a row at a time.

    Padded to a multiple of 8 with rows of the identity: at other sizes the matrices of a batch lie
    at other alignments, and a sample alone is rounded otherwise than in company.
    """

    def __init__(self, tracked: bool) -> None:
        self.tracked = tracked  # nothing is written in place
        self.k = 0
        self._buffer: Tensor | None = None

    def append(self, row: Tensor) -> None:
        """Adds the row `(samples, k)` left of the next diagonal entry."""
        k = self.k
        if self._buffer is None or self.tracked or k >= self._buffer.shape[1]:
            room = _up_to_eight(k + 1) if self.tracked else max(8, 2 * k)
            grown = row.new_zeros(row.shape[0], room, room)
            if self._buffer is not None:
                grown[:, :k, :k] = self._buffer[:, :k, :k]
            self._buffer = grown
        self._buffer[:, k, :k] = row
        self.k += 1

    def solve(self, right: Tensor) -> Tensor:
        """The solution for right sides `(samples, k)`."""
        assert self._buffer is not None
        room = _up_to_eight(self.k)
        padded = torch.nn.functional.pad(right, (0, room - self.k))
        matrix = self._buffer[:, :room, :room]
        solution = linalg.solve_triangle(matrix, padded, upper=False, unit_diagonal=True)
        return solution[:, : self.k]

    def forget(self, keep: Tensor) -> None:
        """Sets the matrices of samples to the identity where `keep` `(samples,)` does not hold."""
        if self._buffer is None:
            return
        gone = ~keep[:, None, None]
        fill = self._buffer.masked_fill if self.tracked else self._buffer.masked_fill_
        self._buffer = fill(gone, 0.0)

    def clear(self) -> None:
        self.k = 0
        self._buffer = None

    def select(self, index: Tensor) -> None:
        if self._buffer is not None:
            self._buffer = self._buffer.index_select(0, index)


def _up_to_eight(k: int) -> int:
    return -(-k // 8) * 8
