"""What the linear solvers share: cycles, each of which ends with the true residual."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.growth import allowed, grown
from equilibria.solve.judge import RUNNING, STALL
from equilibria.solve.loop import Run
from equilibria.solve.rows import Rows, choose, norm, subtract
from equilibria.solve.solvers.base import Limits, Product, check_at_least
from equilibria.solve.status import Status


@dataclass(frozen=True, kw_only=True)
class LinearSolver(Limits, abc.ABC):
    """Solves u = A u + g for every sample, from products A u alone.

    The residual of a sample is ||A u + g - u||, relative to ||A u + g||: that of the affine map, so
    that a forward solver can stand in for a linear one and the numbers mean the same. Growth is
    measured from u = 0, wherever a warm start begins: once ||A u + g|| is over 4 ||g|| the residual
    must have fallen below .03 ||g|| as well, or a singular system would pass for solved as soon as
    u is large.

    Class attributes:
        budgets: `solve` can limit each sample's products; a method that cannot is refused where
            they are limited, by `NewtonKrylov` and at the end of a `Relay`.
    """

    rtol: float = 1e-4
    atol: float = 0.0
    budgets: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, "rtol", 0.0)
        check_at_least(self, "atol", 0.0)

    @abc.abstractmethod
    def solve(
        self,
        product: Product,
        g: Rows,
        start: Rows | None = None,
        *,
        rtol: Tensor | None = None,
        budget: Tensor | None = None,
        trust: bool = False,
    ) -> Run:
        """Solves u = A u + g.

        Args:
            product: u -> A u, on rows; one call is one evaluation.
            g: the constant term.
            start: a first guess; None is zero.
            rtol: `(samples,)`, each sample's own, in place of the solver's.
            budget: `(samples,)` int64, products that each sample may take, beside `max_evals`. One
                that may take none keeps its first guess.
            trust: the method's own estimate of the residual will do, where measuring it would take
                a product more. Status and residual are then estimates too.
        """


def require_budgets(option: str, given: LinearSolver) -> None:
    """Raise TypeError unless a method, the value of an option, can limit each sample's products."""
    if not given.budgets:
        raise TypeError(
            f"{option}: {type(given).__name__} cannot stop each sample after the products that it "
            "has left; eq.GMRES() and eq.BiCGSTAB() can"
        )


@dataclass(frozen=True)
class Goal:
    """The tolerance of a solve, in the RMS norm.

    It is atol + rtol ||A u + g||; where A u + g has outgrown g no more than `growth.allowed`.

    Attributes:
        constant: ||g||, `(samples,)`, the residual of u = 0.
    """

    atol: float
    rtol: float | Tensor
    constant: Tensor

    def limit(self, scale: Tensor) -> Tensor:
        """The largest residual that is tolerated where ||A u + g|| is `scale`."""
        relative = self.atol + self.rtol * scale
        if not isinstance(self.rtol, Tensor) and not self.rtol:
            return relative  # an absolute tolerance is met by no growth
        fallen = allowed(scale, self.constant, self.atol)
        large = grown(scale, self.constant)
        return torch.where(large, torch.minimum(relative, fallen), relative)

    def reached(self, now: Measured) -> Tensor:
        return now.finite & (now.size <= self.limit(now.scale))


@dataclass(frozen=True)
class Measured:
    """u with its true residual r = A u + g - u, ||r|| and ||A u + g||.

    Attributes:
        zero: u is zero for all samples.
    """

    u: Rows
    residual: Rows
    size: Tensor
    scale: Tensor
    zero: bool = False

    @cached_property
    def finite(self) -> Tensor:
        return self.size + self.scale < math.inf

    def relative(self) -> Tensor:
        """||r|| / ||A u + g||, infinite where that is no number."""
        tiny = torch.finfo(self.size.dtype).tiny
        return torch.where(self.finite, self.size / (self.scale + tiny), math.inf)

    def replaced(self, mask: Tensor, by: Measured) -> Measured:
        """`by` for the samples of `mask` `(samples,)`."""
        if private.every(mask):
            return by
        return Measured(
            choose(mask, by.u, self.u),
            choose(mask, by.residual, self.residual),
            torch.where(mask, by.size, self.size),
            torch.where(mask, by.scale, self.scale),
        )


@dataclass(frozen=True, kw_only=True)
class CyclicSolver(LinearSolver, abc.ABC):
    """A Krylov method in cycles: each ends with a product that measures the true residual.

    A cycle's own estimate of the residual drifts from the truth by rounding, or fails outright on a
    singular system; only the measured one decides. A cycle that gains less than 1 % is the last:
    the sample has stalled.
    """

    @abc.abstractmethod
    def cycle(
        self, product: Product, start: Measured, goal: Goal, budget: Tensor, active: Tensor
    ) -> tuple[Rows, Tensor, Tensor]:
        """Improves `start` with at most `budget` `(samples,)` products.

        Returns:
            The new u; the products each sample took part in `(samples,)`; and its own estimate of
            ||r||. A sample stops by its own estimate and budget alone, whatever the others need.
        """

    @property
    def min_products(self) -> int:
        """Products without which a cycle can do nothing."""
        return 1

    @override
    def solve(
        self,
        product: Product,
        g: Rows,
        start: Rows | None = None,
        *,
        rtol: Tensor | None = None,
        budget: Tensor | None = None,
        trust: bool = False,
    ) -> Run:
        size = norm(g)
        goal = Goal(self.atol, self.rtol if rtol is None else rtol, size)
        if start is None:  # A 0 = 0 needs no product
            now = Measured([torch.zeros_like(row) for row in g], g, size, size, zero=True)
            reached = now.finite & (size <= self.atol)
        else:
            now = measured(product, g, start)
            reached = goal.reached(now)
        running = now.finite & ~reached
        every = private.every(running)
        status = torch.full_like(now.size, RUNNING, dtype=torch.int8)
        if not every:
            status = torch.where(reached, int(Status.CONVERGED), status)
            status = torch.where(now.finite, status, int(Status.NONFINITE))
        evals = torch.full_like(now.size, 0 if start is None else 1, dtype=torch.int64)
        most: int | Tensor = self.max_evals
        if budget is not None:
            most = budget.clamp(0, self.max_evals)
            evals = torch.minimum(evals, most)
        while every or private.some(running):
            left = most - evals - (0 if trust else 1)  # one product measures
            able = running & (left >= self.min_products)
            if not private.every(able):
                every = False
                status = torch.where(running & ~able, int(Status.MAX_EVALS), status)
                running = able
                if not private.some(running):
                    break
            proposal, used, size = self.cycle(product, now, goal, left, running)
            if not every:
                proposal = choose(running, proposal, now.u)
            evals = evals + used
            if trust:
                new = Measured(proposal, [], size, norm(proposal))
                trusted = running & (goal.reached(new) | (most - evals < 1 + self.min_products))
                if not private.every(trusted | ~running):
                    real = measured(product, g, proposal)
                    evals = evals + (running & ~trusted)
                    size = torch.where(trusted, size, real.size)
                    scale = torch.where(trusted, new.scale, real.scale)
                    new = Measured(proposal, real.residual, size, scale)
                else:
                    new = Measured(proposal, now.residual, new.size, new.scale)
            else:
                evals = evals + (1 if every else running)
                new = measured(product, g, proposal)
            done = goal.reached(new)
            if every and private.every(done):  # as it mostly goes
                return Run(new.u, done.to(torch.int8) - 1, evals, new.relative())
            better = running & new.finite & (new.size < now.size)
            stalled = running & ~(new.size < STALL * now.size)
            now = now.replaced(better, new)
            status = torch.where(stalled, int(Status.STALLED), status)
            status = torch.where(running & ~new.finite, int(Status.NONFINITE), status)
            status = torch.where(better & goal.reached(now), int(Status.CONVERGED), status)
            running = status == RUNNING
            every = private.every(running)
        return Run(now.u, status, evals, now.relative())


def measured(product: Product, g: Rows, u: Rows) -> Measured:
    """Takes one product."""
    image = [a + b for a, b in zip(product(u), g, strict=True)]
    residual = subtract(image, u)
    return Measured(u, residual, norm(residual), norm(image))


def inverse(x: Tensor) -> Tensor:
    """1 / x, zero where x is zero: a Krylov space that is exhausted."""
    return torch.where(x == 0, 0.0, x.reciprocal())
