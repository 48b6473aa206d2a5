"""Newton's method with a Krylov method inside."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve.linear.base import LinearSolver
from equilibria.solve.linear.gmres import GMRES
from equilibria.solve.rows import Rows, add_scaled, choose, norm, select
from equilibria.solve.solvers.base import Jacobian, Point, Solver, Stepper

FIRST_FORCING = 0.5
LARGEST_FORCING = 0.9
GAMMA, ALPHA = 0.9, 2.0  # of choice 2
REMEMBERED_FROM = 0.1  # the forcing term may not fall faster than its own square above this
LEAST_DECREASE = 1e-4
GROWTH = 2.0
SHORTEST = 1e-3  # share of a Newton step below which shortening it further is no use


@dataclass(frozen=True, kw_only=True)
class NewtonKrylov(Solver):
    """Inexact Newton's method on g(z) = f(z) - z, by Jacobian-vector products.

        z <- z + t s,  ||(I - J) s - g|| <= eta ||g||,  J = df/dz.

    eta follows choice 2 of Eisenstat and Walker: .9 (||g|| / ||g before||)^2, safeguarded, and
    never tighter than half of what the solver's own tolerance leaves to gain. t is 1; for a sample
    whose residual has not fallen it is shortened, from the iterate before, by a safeguarded
    parabola and one evaluation each time. Converges where plain iteration and its accelerations do
    not, also at spectral radii above 1, and quadratically at the end.

    Every product counts as an evaluation of f. A product costs about as much time as one; f must
    be differentiable twice by autograd. Memory: one evaluation of f with its graph, the linear
    solver's history and 3 vectors of the size of z.

    Source: Eisenstat and Walker 1996, eq. 2.6; Kelley 1995, ch. 6 and 8.

    Attributes:
        linear: solves for the step. Its `rtol` is the tightest eta; its `max_evals` limits the
            products of one step.

    Raises:
        TypeError: under `Unrolled`: the products are not made to be differentiated.
    """

    linear: LinearSolver = field(default_factory=lambda: GMRES(rtol=1e-6, restart=40, max_evals=40))

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        given: Any = self.linear
        if not isinstance(given, LinearSolver):
            raise TypeError(
                "NewtonKrylov(linear=...): expected a linear solver such as eq.GMRES(), got "
                f"{given!r}"
            )

    @override
    def start(self, tracked: bool, jacobian: Jacobian | None) -> Stepper:
        if jacobian is None:
            raise TypeError(
                "NewtonKrylov can't be differentiated step by step, as Unrolled does: use another "
                "adjoint, such as eq.Implicit(), or another solver, such as eq.Anderson()"
            )
        return Newton(self, jacobian)


class Newton(Stepper):
    """Every sample takes its own steps: some solve for a new one while others shorten theirs.

    `spent` counts the products, and the evaluations that linearising took.
    """

    def __init__(self, solver: NewtonKrylov, jacobian: Jacobian) -> None:
        self.solver = solver
        self.jacobian = jacobian
        self.evals: Tensor | int = 0
        self.begun = torch.empty(0)  # which samples have taken a step
        self.base: Rows = []  # the iterate that it was taken from, and ||g|| there
        self.base_size = self.forcing = torch.empty(0)
        self.least_size = torch.empty(0)  # the smallest ||g|| of such iterates
        self.newton_step: Rows = []  # the whole step s, and the share of it that is taken
        self.share = torch.empty(0)

    @override
    def step(self, now: Point) -> Rows:
        everyone = torch.ones_like(now.size, dtype=torch.bool)
        self.evals = self.evals + (1 if self.spent is None else 1 + self.spent)
        return self.advance(now, everyone if now.running is None else now.running, self.evals)

    def advance(self, now: Point, which: Tensor, used: Tensor | int) -> Rows:
        """The next iterate of the samples in `which`; a sample may come in at any evaluation.

        Args:
            used: evaluations so far.
        """
        size = norm(now.residual)
        if not self.base:
            self.base = now.z
            self.newton_step = [torch.zeros_like(row) for row in now.z]
            self.base_size = self.least_size = self.forcing = self.share = torch.ones_like(size)
            self.begun = torch.zeros_like(which)
        self.spent = torch.zeros_like(which, dtype=torch.int64)
        accepted = which & (~self.begun | self._accepts(size))
        refused = which & ~accepted
        self.share = torch.where(refused, self._shorter(size) * self.share, self.share)
        if bool(accepted.any()):
            self._solve(now, size, accepted, self.solver.max_evals - used)
        return add_scaled(self.base, self.share, self.newton_step)

    def _accepts(self, size: Tensor) -> Tensor:
        """Has the residual fallen enough, or is it still near the smallest?

        Asking for a decrease each time would lock samples in where ||g|| is least without being
        zero.
        """
        enough = 1 - LEAST_DECREASE * self.share * (1 - self.forcing)
        fallen = size <= enough * self.base_size
        return fallen | (size <= GROWTH * self.least_size) | (self.share <= SHORTEST)

    def _shorter(self, size: Tensor) -> Tensor:
        """Where the parabola through ||g||^2, its slope and its newest value is least."""
        grown = (size / self.base_size) ** 2
        least = self.share / (grown - 1 + 2 * self.share)
        return torch.where(torch.isfinite(least), least, 0.5).clamp(0.1, 0.5)

    def _solve(self, now: Point, size: Tensor, which: Tensor, budget: Tensor | int) -> None:
        solver = self.solver
        forcing = self._forcing(size, solver.atol + solver.rtol * norm(now.f))
        before = self.jacobian.evals
        product = self.jacobian(now.z)
        taken = self.jacobian.evals - before
        # In units of what is sought, so that one absolute tolerance serves all samples.
        unit = forcing * size
        scale = torch.where(which & (unit > 0), unit.reciprocal(), 0.0)
        g = [torch.where(which.unsqueeze(1), row * scale.unsqueeze(1), 0.0) for row in now.residual]
        budget = budget - taken - 1  # one is for f at the new iterate
        run = self._linear.solve(product, g)
        step = [row * unit.unsqueeze(1) for row in run.value]
        self.spent = torch.where(which, run.evals + taken, 0)
        self.base = choose(which, now.z, self.base)
        self.least_size = torch.where(
            which & ~(self.begun & (size > self.least_size)), size, self.least_size
        )
        self.base_size = torch.where(which, size, self.base_size)
        self.begun = self.begun | which
        self.forcing = torch.where(which, forcing, self.forcing)
        self.share = torch.where(which, 1.0, self.share)
        self.newton_step = choose(which, step, self.newton_step)

    @property
    def _linear(self) -> LinearSolver:
        return replace(self.solver.linear, rtol=0.0, atol=1.0)

    def _forcing(self, size: Tensor, goal: Tensor) -> Tensor:
        forcing = GAMMA * (size / self.base_size) ** ALPHA
        before = GAMMA * self.forcing**ALPHA
        forcing = torch.where(before > REMEMBERED_FROM, torch.maximum(forcing, before), forcing)
        forcing = torch.where(self.begun, forcing, FIRST_FORCING)
        forcing = torch.maximum(forcing, 0.5 * goal / size)
        return forcing.clamp(self.solver.linear.rtol, LARGEST_FORCING)

    @override
    def select(self, index: Tensor) -> None:
        if isinstance(self.evals, Tensor):
            self.evals = self.evals.index_select(0, index)
        if self.spent is not None:
            self.spent = self.spent.index_select(0, index)
        if not self.base:
            return
        self.base = select(self.base, index)
        self.newton_step = select(self.newton_step, index)
        self.begun = self.begun.index_select(0, index)
        self.base_size = self.base_size.index_select(0, index)
        self.least_size = self.least_size.index_select(0, index)
        self.forcing = self.forcing.index_select(0, index)
        self.share = self.share.index_select(0, index)
