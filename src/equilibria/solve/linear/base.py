"""What the linear solvers share: cycles, each of which ends with the true residual."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equilibria.solve.loop import RUNNING, STALL, Run
from equilibria.solve.rows import Rows, choose, norm
from equilibria.solve.solvers.base import Limits
from equilibria.solve.status import Status

Product = Callable[[Rows], Rows]


@dataclass(frozen=True, kw_only=True)
class LinearSolver(Limits, abc.ABC):
    """Solves u = A u + g for every sample, from products A u alone.

    The residual of a sample is ||A u + g - u||, relative to ||A u + g||: that of the affine map, so
    that a forward solver can stand in for a linear one and the numbers mean the same.
    """

    @abc.abstractmethod
    def solve(self, product: Product, g: Rows, start: Rows | None = None) -> Run:
        """Solves u = A u + g.

        Args:
            product: u -> A u, on rows; one call is one evaluation.
            g: the constant term.
            start: a first guess; None is zero.
        """


@dataclass(frozen=True)
class Measured:
    """u with its true residual r = A u + g - u, ||r|| and ||A u + g||."""

    u: Rows
    residual: Rows
    size: Tensor
    scale: Tensor


@dataclass(frozen=True, kw_only=True)
class CyclicSolver(LinearSolver, abc.ABC):
    """A Krylov method in cycles: each ends with a product that measures the true residual.

    A cycle's own estimate of the residual drifts from the truth by rounding, or fails outright on a
    singular system; only the measured one decides. A cycle that gains less than 1 % is the last:
    the sample has stalled.
    """

    @abc.abstractmethod
    def cycle(
        self, product: Product, start: Measured, budget: Tensor, active: Tensor
    ) -> tuple[Rows, Tensor]:
        """Improves `start` with at most `budget` `(samples,)` products.

        Returns:
            The new u, and the products each sample took part in `(samples,)`. A sample stops by
            its own estimate and budget alone, whatever the others need.
        """

    @property
    def least(self) -> int:
        """Products without which a cycle can do nothing."""
        return 1

    def solve(self, product: Product, g: Rows, start: Rows | None = None) -> Run:
        samples, device = g[0].shape[0], g[0].device
        evals = torch.zeros(samples, dtype=torch.int64, device=device)
        tiny = torch.finfo(g[0].dtype).tiny
        if start is None:  # A 0 = 0 needs no product
            size = norm(g)
            now = Measured([torch.zeros_like(row) for row in g], g, size, size)
        else:
            now = self._measured(product, g, start)
            evals = evals + 1
        status = torch.full((samples,), RUNNING, dtype=torch.int8, device=device)
        status = torch.where(now.size <= self.atol, int(Status.CONVERGED), status)
        if start is not None:
            status = torch.where(self._reached(now), int(Status.CONVERGED), status)
        finite = torch.isfinite(now.size + now.scale)
        status = torch.where(finite, status, int(Status.NONFINITE))
        while True:
            budget = self.max_evals - 1 - evals  # one product measures
            spent = (status == RUNNING) & (budget < self.least)
            status = torch.where(spent, int(Status.MAX_EVALS), status)
            running = status == RUNNING
            if not bool(running.any()):
                break
            proposal, used = self.cycle(product, now, budget, running)
            evals = evals + torch.where(running, used + 1, 0)
            new = self._measured(product, g, choose(running, proposal, now.u))
            finite = torch.isfinite(new.size + new.scale)
            gained = new.size < STALL * now.size
            better = running & finite & (new.size < now.size)
            now = Measured(
                choose(better, new.u, now.u),
                choose(better, new.residual, now.residual),
                torch.where(better, new.size, now.size),
                torch.where(better, new.scale, now.scale),
            )
            reached = self._reached(now)
            status = torch.where(running & ~gained, int(Status.STALLED), status)
            status = torch.where(running & ~finite, int(Status.NONFINITE), status)
            status = torch.where(running & better & reached, int(Status.CONVERGED), status)
        relative = torch.where(
            torch.isfinite(now.size + now.scale), now.size / (now.scale + tiny), math.inf
        )
        return Run(now.u, status, evals, relative, None, None, ())

    def _reached(self, now: Measured) -> Tensor:
        return now.size <= self.atol + self.rtol * now.scale

    def _measured(self, product: Product, g: Rows, u: Rows) -> Measured:
        image = [a + b for a, b in zip(product(u), g, strict=True)]
        residual = [a - b for a, b in zip(image, u, strict=True)]
        return Measured(u, residual, norm(residual), norm(image))


def report_singular(run: Run, g: Rows) -> Run:
    """STALLED instead of CONVERGED where u has grown until its residual drowned in its size.

    Where no u solves the system a method can still make u so large that its residual is small
    beside it, though not beside g.
    """
    size, constant = norm(run.value), norm(g)
    drowned = (size > 1e3 * constant) & (run.residual * size > 0.01 * constant)
    singular = size > 0.01 / torch.finfo(g[0].dtype).eps * constant  # to working precision
    blown = (drowned | singular) & (run.status == Status.CONVERGED)
    return replace(run, status=torch.where(blown, int(Status.STALLED), run.status))


def inverse(x: Tensor) -> Tensor:
    """1 / x, zero where x is zero: a Krylov space that is exhausted."""
    return torch.where(x == 0, 0.0, x.reciprocal())
