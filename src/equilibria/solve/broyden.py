"""Broyden's method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.options import whole_field
from equilibria.solve.rows import Memory, Rows, add_scaled, choose, keep_samples
from equilibria.solve.solvers import Inverse, Point, Solver, Stepper
from equilibria.solve.termination import STALL

# Beyond this the secant update divides by rounding: the sample starts its memory afresh.
LARGEST_FACTOR = 1e4
ROOM = 16  # rows of R that are made room for at first


@dataclass(frozen=True, kw_only=True)
class Broyden(Solver):
    """Broyden's ("good") method on g(z) = f(z) - z, from B_0 = -I.

    The inverse Jacobian of Bai 2022 (thesis), eq. 2.12 in the compact form of Kelley (1995, sec.
    7.3): with full steps s_k = -B_k g_k the rank-one updates are products of
    (I + s_{k+1} s_k^T / s_k^T s_k), so the steps alone tell all, and one vector an evaluation is
    stored instead of two. A new step costs one pass of inner products over the history, two small
    products and one pass to combine.

    With a limited memory the method restarts when the memory is full: at the best iterate, with
    B = -theta I. theta is 1, and halved after each memory's worth of steps that brought nothing, or
    the restart would take the same path again. Writing over the oldest update instead, as is often
    done, leaves a matrix that satisfies no secant equation, and diverges.

    History: one vector of the size of z an evaluation, up to `memory` and one more, in room that
    doubles until it has reached that or `max_evals`; a small square matrix of that length.

    Attributes:
        memory: steps kept before a restart; None keeps all and never restarts.
    """

    memory: int | None = whole_field(None, 1)

    @override
    def start(self, tracked: bool, jacobian: object = None) -> Stepper:
        return _Broyden(self.memory, self.max_evals, tracked)


class _Broyden(Stepper):
    """-B_k = (I + S_+ R S^T) theta, with S the steps s_0, ..., s_{k-1} and S_+ the ones after them.

    R is lower triangular and gains a row a step: with w_j = 1 / s_j . s_j the coefficients
    d = R S^T g solve d_j = w_j (s_j . g + sum_{i<j} (s_j . s_{i+1}) d_i), so its newest row is
    w_j ((s_j . s_{i+1})_i R, 1). The newest step's own successor is what is sought:
    s_{k+1} (1 - d_k) = g + sum_{j<k} s_{j+1} d_j.

    R is kept one row lower, below a row of zeros, so that s_j . s_{i+1} and d need no shifting.
    """

    PER_SAMPLE = ("before", "theta", "matrix")

    def __init__(self, memory: int | None, max_evals: int, tracked: bool) -> None:
        self.memory = memory
        self.looks_around = memory is not None
        self.tracked = tracked
        # The steps, and the newest residual in the slot where the next step will be.
        self.most = max_evals if memory is None else min(memory + 1, max_evals)
        self.steps = Memory(self.most, tracked)
        self.count = 0
        self.matrix = torch.empty(0)  # R, one row lower
        self.before: Tensor | None = None  # the best residual's size at the restart before
        self.theta: Tensor | None = None  # None: 1
        # Samples that have ended `(samples, 1)`, and those of them that had before the newest
        # evaluation; None: none.
        self.ended: Tensor | None = None
        self.at_rest: Tensor | None = None
        self.lengths: Tensor | None = None

    @override
    def residual(self, f: Rows, z: Rows) -> Rows:
        self.at_rest = self.ended
        return self.steps.store(self.count, f, z)

    @override
    def step(self, now: Point) -> Rows:
        if self.memory is not None and self.count >= self.memory:
            return self._restart(now)
        if self.count == 0 and self.theta is None:
            self.count = 1
            return now.f
        step = now.residual
        if self.theta is not None:
            step = self.steps.store(self.count, self._scale(step))
        if self.count > 0:
            step = self.steps.store(self.count, self._step())
        self.count += 1
        return add_scaled(now.z, 1.0, step)

    def _step(self) -> Rows:
        k = self.count
        products = self.steps.dots([k - 1, k], 0, k)
        newest, right = products[:, :1], products[:, 1:]
        careful = self.tracked or not private.free_to_read(right)

        square = newest[:, :, k - 1 : k]
        if careful:  # a sample at rest
            square = torch.where(square > 0, square, torch.inf)
        self._add_row(newest, square)
        found = torch.bmm(right, self.matrix[:, 1 : k + 1, :k].transpose(1, 2)).squeeze(1)  # d
        pivot = 1 - found[:, -1:]
        if self.at_rest is not None:  # a step that changed nothing has no secant
            pivot = pivot.masked_fill(self.at_rest, 1.0)
        if careful:
            pivot = torch.where(pivot.abs() * LARGEST_FACTOR > 1, pivot, torch.inf)
        # Over s_1, ..., s_{k-1} and, in the slot behind them, the residual.
        if self.tracked:
            found = torch.cat([found[:, :-1], torch.ones_like(pivot)], dim=1)
        else:
            found[:, -1:].fill_(1.0)
        weights = found / pivot
        factor = weights[:, -1:]
        if careful or not torch.equal(factor.clamp(-LARGEST_FACTOR, LARGEST_FACTOR), factor):
            weights = self._forget(weights, factor)
        return self.steps.combine(weights, 1)

    def _add_row(self, newest: Tensor, square: Tensor) -> None:
        """R's row for the newest step, from its products with all steps `(samples, 1, k)`.

        Args:
            square: that with itself, s_k . s_k.
        """
        k = self.count
        if self.tracked:
            one = torch.ones_like(square)
            known = torch.zeros_like(one)
            row = one
            if k > 1:
                known = torch.nn.functional.pad(self.matrix, (0, 1))
                row = torch.cat([torch.bmm(newest[:, :, :k], known)[:, :, :-1], one], dim=2)
            self.matrix = torch.cat([known, row / square], dim=1)
            return
        if k == 1 or k >= self.matrix.shape[1]:
            length = min(max(ROOM, 2 * k), self.most)
            # The 1 of every row is in its place before the row is.
            grown = newest.new_zeros(newest.shape[0], length, length)
            grown.diagonal(offset=-1, dim1=1, dim2=2).fill_(1.0)
            if k > 1:
                grown[:, :k, :k] = self.matrix[:, :k, :k]
            self.matrix = grown
        place = self.matrix[:, k : k + 1, :k]
        row = torch.baddbmm(place, newest, self.matrix[:, :k, :k]) if k > 1 else place
        place.copy_(row / square)

    def _forget(self, weights: Tensor, factor: Tensor) -> Tensor:
        """Starts afresh where the update would divide by rounding; there the step is the residual.

        Args:
            weights: of the steps and the residual, the last of them, `factor`.
        """
        gone = ~((factor.abs() <= LARGEST_FACTOR) & (factor != 0))
        rows = self.matrix[:, : self.count + 1]
        if self.tracked:
            self.matrix = rows.masked_fill(gone.unsqueeze(2), 0.0)
        else:
            rows.masked_fill_(gone.unsqueeze(2), 0.0)
        rest = weights[:, :-1].masked_fill(gone, 0.0)
        return torch.cat([rest, torch.where(gone, 1.0, factor)], dim=1)

    def _restart(self, now: Point) -> Rows:
        """From the newest iterate, or for a sample that had been better from its best one, which
        is evaluated once more: a step that is not Broyden's, remembered as none."""
        assert now.best is not None and now.best_size is not None
        if self.before is not None:
            theta = torch.ones_like(self.before) if self.theta is None else self.theta
            # Has this memory's worth of steps brought anything?
            self.theta = torch.where(now.best_size < STALL * self.before, 1.0, theta / 2)
        self.before = now.best_size
        behind = now.size > 2 * now.best_size
        step = choose(
            behind, [torch.zeros_like(row) for row in now.residual], self._scale(now.residual)
        )
        self.steps.store(0, step)
        self.count = 1
        return add_scaled(choose(behind, now.best, now.z), 1.0, step)

    def _scale(self, residual: Rows) -> Rows:
        """-B_0 g."""
        if self.theta is None:
            return residual
        return [row * self.theta.unsqueeze(1) for row in residual]

    @override
    def end(self, here: Tensor) -> None:
        (samples, _), device = self.steps.at(0)[0].shape, here.device
        if self.ended is None or self.lengths is None:
            self.ended = torch.zeros(samples, 1, dtype=torch.bool, device=device)
            self.lengths = torch.zeros(samples, dtype=torch.int64, device=device)
        self.ended = self.ended.index_fill(0, here, True)
        self.lengths.index_fill_(0, here, max(self.count - 1, 0))

    @override
    def find_inverse(self) -> Inverse | None:
        if self.tracked or self.memory is not None:
            return None
        assert self.lengths is not None
        return Inverse.of(self.steps.rows(), self.matrix, self.lengths)

    @override
    def select(self, index: Tensor) -> None:
        self.steps.select(index)
        self.ended = self.at_rest = self.lengths = None
        keep_samples(self, index)
