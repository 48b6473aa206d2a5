"""Linear solvers for u = A u + g: a method proposes, and the true residual decides."""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.convergence import Criterion, Reference
from equilibria.solve.derivative import KnownProduct
from equilibria.solve.estimate import SAFETY
from equilibria.solve.layout import Layout
from equilibria.solve.loop import Run, iterate
from equilibria.solve.monitor import Terms
from equilibria.solve.options import instance_field, is_foreign, nonnegative_field, whole_field
from equilibria.solve.rows import Rows, add_scaled, check_like, choose, dot, length, subtract
from equilibria.solve.solvers import Limits, Product, Solver
from equilibria.solve.status import RUNNING, Reason, Status
from equilibria.solve.termination import STALL
from equilibria.solve.tree import describe


@dataclass(frozen=True, kw_only=True)
class LinearSolver(Limits, abc.ABC):
    """Solves u = A u + g for every sample, from products A u alone.

    A custom linear solver overrides `cycle`, which proposes a u. `solve` takes the product that
    measures the proposal and decides by the true residual, which a method's own estimate drifts
    from by rounding, or misses outright on a singular system. A cycle that gains less than 1 % is
    the last: the sample has stalled.

    The residual of a sample is ||A u + g - u||, relative to ||A u + g||: that of the affine map, so
    that a forward solver can stand in for a linear one and the numbers mean the same. Growth is
    measured from u = 0, wherever a warm start begins: once ||A u + g|| is over 4 ||g|| the residual
    must have fallen below a share of ||g|| as well, or a singular system would pass for solved as
    soon as u is large.

    Class attributes:
        direct: a sample that stalls has a singular system.
    """

    rtol: float = nonnegative_field(1e-4)
    atol: float = nonnegative_field(0.0)
    direct: ClassVar[bool] = False

    @abc.abstractmethod
    def cycle(
        self, product: Product, start: Measured, goal: Goal, budget: Tensor, active: Tensor
    ) -> tuple[Rows, Tensor, Tensor]:
        """Propose a better u than `start` with at most `budget` products a sample.

        Args:
            product: u -> A u, on rows `(samples, entries)`, one matrix a leaf; one call is one
                evaluation of all samples.
            start: u, its residual, and their lengths.
            goal: says which residual is small enough.
            budget: `(samples,)` int64.
            active: `(samples,)` bool, the samples that still run.

        Returns:
            The new u; the products that each sample took part in `(samples,)` int64; and the
            method's own estimate of ||r|| `(samples,)`. A sample stops by its own estimate and
            budget alone, whatever the others need.
        """

    def min_products(self, entries: int) -> int:
        """Products without which a cycle can do nothing for a sample of so many entries."""
        del entries
        return 1

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
        """Solve u = A u + g.

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
        least = self.min_products(sum(row.shape[1] for row in g))
        goal = Goal.of(self.rtol if rtol is None else rtol, self.atol, g, self.error)
        size = goal.reference.size
        if start is None:  # A 0 = 0 needs no product
            now = Measured([torch.zeros_like(row) for row in g], g, size, size, zero=True)
            reached = now.finite & (size <= goal.absolute)
        else:
            now = measure(product, g, start)
            reached = goal.is_reached(now)
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
            able = running & (left >= least)
            if not private.every(able):
                every = False
                status = torch.where(running & ~able, int(Status.MAX_EVALS), status)
                running = able
                if not private.some(running):
                    break
            proposed: Any = self.cycle(product, now, goal, left, running)
            if is_foreign(self):
                self._check(proposed, now, left, running)
            proposal, used, size = proposed
            if not every:
                proposal = choose(running, proposal, now.u)
            evals = evals + used
            if trust:
                new = Measured(proposal, now.residual, size, length(proposal))
                trusted = running & (goal.is_reached(new) | (most - evals < 1 + least))
                if not private.every(trusted | ~running):
                    evals = evals + (running & ~trusted)
                    new = measure(product, g, proposal).trust(trusted, new)
            else:
                evals = evals + (1 if every else running)
                new = measure(product, g, proposal)
            done = goal.is_reached(new)
            if every and private.every(done):  # as it mostly goes
                status = done.to(torch.int8) - 1
                return goal.run(new, status, torch.zeros_like(status), evals)
            better = running & new.finite & (new.size < now.size)
            stalled = running & ~(new.size < STALL * now.size)
            now = now.update(better, new)
            status = torch.where(stalled, int(Status.STALLED), status)
            status = torch.where(running & ~new.finite, int(Status.NONFINITE), status)
            status = torch.where(better & goal.is_reached(now), int(Status.CONVERGED), status)
            running = status == RUNNING
            every = private.every(running)
        return goal.run(now, status, self._reason(goal, now, status), evals)

    def _check(self, proposed: Any, start: Measured, budget: Tensor, active: Tensor) -> None:
        """Raises where a method of a user's own has not returned what a cycle returns."""
        what = f"{type(self).__name__}.cycle"
        layout = "u like the start, the products of each sample, int64, and the residual's length"
        if not isinstance(proposed, tuple) or len(cast("tuple[Any, ...]", proposed)) != 3:
            raise TypeError(f"{what} returned {describe(proposed)}: expected {layout}")
        rows, used, size = cast("tuple[Any, Any, Any]", proposed)
        check_like(what, rows, start.u, layout)
        check_like(what, (used, size), (budget, start.size), layout)
        if private.some(active & (used > budget)):
            raise ValueError(f"{what} took {int(used.max())} products, more than its budget allows")

    def _reason(self, goal: Goal, now: Measured, status: Tensor) -> Tensor:
        """A singular system shows in that u grows without end, or that a direct solve fails."""
        stalled = status == Status.STALLED
        large = (stalled | (status == Status.MAX_EVALS)) & goal.is_met_by_growth(now)
        singular = (large | stalled) if self.direct else large
        return torch.where(singular, int(Reason.SINGULAR), int(Reason.NONE)).to(torch.int8)


def linear_field(default: Any) -> Any:
    """An option that is a linear solver."""
    return instance_field(default, LinearSolver, "a linear solver such as eq.GMRES()")


@dataclass(frozen=True)
class Goal:
    """Which residual of a linear system is small enough: see `Criterion`.

    Attributes:
        criterion: the tolerance.
        reference: lengths of g, the residual of u = 0.
        absolute: the absolute tolerance as a length.
        error: the largest relative error; None: any. See `Stats` for how it is estimated.
    """

    criterion: Criterion
    reference: Reference
    absolute: float
    error: float | None = None

    @classmethod
    def of(cls, rtol: float | Tensor, atol: float, g: Rows, error: float | None = None) -> Goal:
        size = length(g)
        absolute = atol * math.sqrt(sum(row.shape[1] for row in g))
        reference = Reference(size, torch.zeros_like(size))
        return cls(Criterion(rtol, atol), reference, absolute, error)

    def limit(self, scale: Tensor, like: Rows) -> Tensor:
        """The largest ||r|| that is tolerated where ||A u + g|| is `scale`."""
        limit = self.criterion.limit(scale, self.reference, like)
        if self.error is None:
            return limit
        return torch.minimum(limit, SAFETY * self.error * self.reference.size)

    def run(self, now: Measured, status: Tensor, reason: Tensor, evals: Tensor) -> Run:
        """The outcome at u."""
        error = torch.where(now.finite, now.size / self.reference.size, math.nan)
        error = torch.where(now.size == 0, 0.0, error)
        return Run(now.u, status, reason, evals, now.relative(), course=error)

    def is_reached(self, now: Measured) -> Tensor:
        return now.finite & (now.size <= self.limit(now.scale, now.u))

    def is_met_by_growth(self, now: Measured) -> Tensor:
        """Is the residual small, but only beside a u that has grown?"""
        small = now.size <= self.absolute + self.criterion.loosest * now.scale
        return small & ~self.is_reached(now)


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

    def trust(self, mask: Tensor, estimate: Measured) -> Measured:
        """The lengths of an estimate in place of these for the samples of `mask` `(samples,)`."""
        size = torch.where(mask, estimate.size, self.size)
        scale = torch.where(mask, estimate.scale, self.scale)
        return Measured(self.u, self.residual, size, scale)

    def update(self, mask: Tensor, by: Measured) -> Measured:
        """`by` for the samples of `mask` `(samples,)`."""
        if private.every(mask):
            return by
        return Measured(
            choose(mask, by.u, self.u),
            choose(mask, by.residual, self.residual),
            torch.where(mask, by.size, self.size),
            torch.where(mask, by.scale, self.scale),
        )


def measure(product: Product, g: Rows, u: Rows) -> Measured:
    """Takes one product."""
    image = [a + b for a, b in zip(product(u), g, strict=True)]
    residual = subtract(image, u)
    return Measured(u, residual, length(residual), length(image))


def inverse(x: Tensor) -> Tensor:
    """1 / x, zero where x is zero: a Krylov space that is exhausted."""
    return torch.where(x == 0, 0.0, x.reciprocal())


@dataclass(frozen=True, kw_only=True)
class BiCGSTAB(LinearSolver):
    """The stabilised bi-conjugate gradient method on (I - A) u = g.

    Two products a step and a fixed memory, where GMRES stores a vector a product; its residual does
    not fall monotonically, and it can break down, after which it starts again from where it stands.

    History: 5 vectors of the size of u. Source: van der Vorst 1992.
    """

    @override
    def min_products(self, entries: int) -> int:
        return 2

    @override
    def cycle(
        self, product: Product, start: Measured, goal: Goal, budget: Tensor, active: Tensor
    ) -> tuple[Rows, Tensor, Tensor]:
        u, r = start.u, start.residual
        shadow, direction = r, r
        rho = dot(shadow, r)
        used = torch.zeros(active.shape[0], dtype=torch.int64, device=active.device)
        while bool(active.any()):
            image = subtract(direction, product(direction))
            alpha = rho * inverse(dot(shadow, image))
            half = add_scaled(r, -alpha, image)
            stabilizer = subtract(half, product(half))
            omega = dot(stabilizer, half) * inverse(dot(stabilizer, stabilizer))
            used = used + 2 * active
            proposal = add_scaled(add_scaled(u, alpha, direction), omega, half)
            remainder = add_scaled(half, -omega, stabilizer)
            finite = torch.isfinite(alpha) & torch.isfinite(omega)
            u = choose(active & finite, proposal, u)
            r = choose(active & finite, remainder, r)
            # A u + g = u + r, so both sides of the tolerance are at hand.
            reached = length(r) <= 0.9 * goal.limit(length(add_scaled(u, 1.0, r)), r)
            previous, rho = rho, dot(shadow, r)
            broken = ~finite | (rho == 0) | (omega == 0) | ~torch.isfinite(rho)
            active = active & ~reached & ~broken & (used + 2 <= budget)
            beta = rho * inverse(previous) * alpha * inverse(omega)
            direction = add_scaled(r, beta, add_scaled(direction, -omega, image))
        return u, used, length(r)


@dataclass(frozen=True, kw_only=True)
class Neumann(LinearSolver):
    """u = sum_i A^i g, summed as u <- A u + g until the residual is small.

    The iteration of Bai 2022 (thesis), eq. 2.16 without acceleration. Converges where the spectral
    radius of A is below 1. History: one vector of the size of u.

    Attributes:
        patience: a sample has stalled when its residual fell by less than 1 % in this many
            products; None never gives up.
    """

    patience: int | None = whole_field(20, 1)

    @override
    def cycle(
        self, product: Product, start: Measured, goal: Goal, budget: Tensor, active: Tensor
    ) -> tuple[Rows, Tensor, Tensor]:
        u, r, size = start.u, start.residual, start.size
        used, mark = torch.zeros_like(budget), size
        for number in range(1, self.max_evals + 1):
            term = product(r)  # the residual that u + r leaves
            used = used + active
            u = choose(active, add_scaled(u, 1.0, r), u)
            r = choose(active, term, r)
            size = torch.where(active, length(r), size)
            reached = size <= goal.limit(length(add_scaled(u, 1.0, r)), u)
            active = active & ~reached & (used < budget) & (size < math.inf)
            if self.patience is not None and number % self.patience == 0:
                active, mark = active & (size < STALL * mark), size
            if not private.some(active):
                break
        return u, used, size


def iterate_affine(
    solver: Solver,
    product: Product,
    g: Rows,
    start: Rows | None,
    rtol: Tensor | None,
    layout: Layout | None = None,
) -> Run:
    """Solves u = A u + g by a forward solver; growth is measured from u = 0."""
    return iterate(
        solver,
        lambda u: [a + b for a, b in zip(product(u), g, strict=True)],
        g if start is None else start,
        None,
        Terms(rtol=rtol, origin=length(g), layout=layout),
        jacobian=KnownProduct(product),
    )


def _separate(rows: Tensor, widths: list[int]) -> Rows:
    anything: Any = rows
    return list(anything.split(widths, dim=1))


_linalg: Any = torch.linalg


@dataclass(frozen=True, kw_only=True)
class DirectSolve(LinearSolver):
    """Builds A column by column and factorises I - A.

    One product an entry of a sample, and one to measure the residual; memory: the square of a
    sample's entries. For small systems and as a reference. A singular I - A is reported as STALLED
    (or NONFINITE), never passed off as solved.

    Raises:
        ValueError: on solving, when a sample has more entries than `max_evals` allows products.
    """

    max_evals: int = whole_field(4096, 1)
    direct: ClassVar[bool] = True

    @override
    def min_products(self, entries: int) -> int:
        if entries + 1 > self.max_evals:
            raise ValueError(
                f"DirectSolve(max_evals={self.max_evals}) can't solve a system of {entries} "
                f"entries a sample: it takes {entries + 1} products. Use GMRES, or raise max_evals"
            )
        return entries

    @override
    def cycle(
        self, product: Product, start: Measured, goal: Goal, budget: Tensor, active: Tensor
    ) -> tuple[Rows, Tensor, Tensor]:
        g = start.residual  # of which the correction is found
        widths = [row.shape[1] for row in g]
        samples, entries = g[0].shape[0], sum(widths)
        columns: list[Tensor] = []
        for entry in range(entries):
            unit = torch.zeros(samples, entries, dtype=g[0].dtype, device=g[0].device)
            unit[:, entry] = 1
            columns.append(torch.cat(product(_separate(unit, widths)), dim=1))
        matrix = torch.stack(columns, dim=2)
        system = torch.eye(entries, dtype=matrix.dtype, device=matrix.device) - matrix
        change = _linalg.solve_ex(system, torch.cat(g, dim=1).unsqueeze(2))[0].squeeze(2)
        usable = torch.isfinite(change).all(dim=1)
        change = _separate(torch.where(usable.unsqueeze(1), change, 0.0), widths)
        u = [a + b for a, b in zip(start.u, change, strict=True)]
        return u, entries * active, torch.where(usable, 0.0, start.size)
