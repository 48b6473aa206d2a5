"""Newton's method with a Krylov method inside."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve.gmres import GMRES
from equilibria.solve.linear import LinearSolver, linear_field
from equilibria.solve.options import refuse_ignored
from equilibria.solve.rows import Rows, add_scaled, choose, entries, keep_samples, length
from equilibria.solve.solvers import Jacobian, Point, Solver, Stepper

FIRST_FORCING = 0.5
LARGEST_FORCING = 0.9
GAMMA, ALPHA = 0.9, 2.0  # of choice 2
REMEMBERED_FROM = 0.1  # the forcing term may not fall faster than its own square above this
LEAST_DECREASE = 1e-4
SHORTEST = 0.05  # share of a Newton step, below which shortening it further is no use
# Limits that a solver for Newton's steps would ignore, and why.
PER_STEP = (
    ("atol", "error"),
    ", since each step has a tolerance of its own, of which rtol is the least: leave it out",
)


def krylov() -> LinearSolver:
    """The default solver for the steps."""
    return GMRES(rtol=1e-6, restart=100, max_evals=100)


@dataclass(frozen=True, kw_only=True)
class NewtonKrylov(Solver):
    """Inexact Newton's method on g(z) = f(z) - z, by Jacobian-vector products.

        z <- z + t s,  ||(I - J) s - g|| <= eta ||g||,  J = df/dz.

    eta follows choice 2 of Eisenstat and Walker, .9 (||g|| / ||g before||)^2 with their safeguard,
    and is never tighter than half of what is left to the solver's own tolerance. t is 1; for a
    sample whose residual has grown it is shortened from the iterate before, by a safeguarded
    parabola and with one evaluation each time; where no share of it above 1/20 helps, the whole
    step is taken after all. Converges where plain iteration and its accelerations do not, also at
    spectral radii far above 1, and quadratically at the end.

    Every product counts as an evaluation of f, and costs about as much. Where autograd can't
    differentiate f twice a product is the difference of two evaluations. Memory: f's graph, the
    linear solver's history and 3 vectors of the size of z.

    Source: Eisenstat and Walker 1996, eq. 2.6; Kelley 1995, ch. 6 and 8.

    Attributes:
        linear: solves for the steps. `rtol` is the least eta, `max_evals` limits the products of
            one step.

    Raises:
        TypeError: in a solve under `Unrolled`: the products are not made to be differentiated.
    """

    linear: LinearSolver = linear_field(krylov)

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_ignored(self, "linear", *PER_STEP)

    @override
    def start(self, tracked: bool, jacobian: Jacobian | None) -> Stepper:
        if jacobian is None:
            raise TypeError(
                "NewtonKrylov can't be differentiated step by step, as Unrolled does: take another "
                "adjoint, such as eq.Implicit(), or another solver, such as eq.Anderson()"
            )
        return NewtonStepper(self, jacobian)


class NewtonStepper(Stepper):
    """Every sample takes its own steps: some solve for a new one while others shorten theirs.

    `spent` counts the products, and evaluations that linearising took.
    """

    looks_around = True
    PER_SAMPLE = ("evals", "begun", "bold", "size", "forcing", "share", "base", "whole")

    def __init__(self, solver: NewtonKrylov, jacobian: Jacobian) -> None:
        self.solver = solver
        self.jacobian = jacobian
        self.evals: Tensor | int = 0
        self.begun = torch.empty(0)  # which samples have taken a step
        self.base: Rows = []  # the iterate that it was taken from, and ||g|| there
        self.size = self.forcing = torch.empty(0)
        self.whole: Rows = []  # the whole step s, and the share of it that is taken
        self.share = torch.empty(0)
        self.bold = torch.empty(0)  # whose next iterate is accepted, whatever it is

    @override
    def step(self, now: Point) -> Rows:
        assert now.running is not None
        self.evals = self.evals + (1 if self.spent is None else 1 + self.spent)
        return self.advance(now, now.running, self.solver.max_evals - self.evals)

    def advance(self, now: Point, which: Tensor, left: Tensor | int) -> Rows:
        """The next iterate of the samples in `which`; a sample may come in at any evaluation.

        Args:
            left: evaluations that are left to each sample.
        """
        if not self.base:
            self.base = now.z
            self.whole = [torch.zeros_like(row) for row in now.z]
            self.size = self.forcing = self.share = torch.ones_like(now.size)
            self.begun = self.bold = torch.zeros_like(which)
        enough = 1 - LEAST_DECREASE * self.share * (1 - self.forcing)
        fell = (now.size <= enough * self.size) | self.bold
        accepted = which & (~self.begun | fell)
        self._shorten(which & ~accepted, now.size)
        self.spent = torch.zeros_like(which, dtype=torch.int64)
        if bool(accepted.any()):
            self._solve(now, accepted, left)
        return add_scaled(self.base, self.share, self.whole)

    def _shorten(self, refused: Tensor, size: Tensor) -> None:
        """To where the parabola through ||g||^2, its slope and its newest value is least.

        Where no short step helps, ||g|| is least but not zero, and the whole step is taken after
        all: it leads away from there.
        """
        grown = (size / self.size) ** 2
        lowest = self.share / (grown - 1 + 2 * self.share)
        ratio = torch.where(torch.isfinite(lowest), lowest, 0.5).clamp(0.1, 0.5)
        shorter = ratio * self.share
        self.bold = refused & (shorter < SHORTEST)
        self.share = torch.where(refused, torch.where(self.bold, 1.0, shorter), self.share)

    def _solve(self, now: Point, which: Tensor, left: Tensor | int) -> None:
        assert now.tolerance_ratio is not None
        size, forcing = now.size, self._choose_forcing(now.size, now.tolerance_ratio)
        product = self.jacobian(now.z)
        taken = torch.where(self.begun, 0, self.jacobian.cost)
        # In units of what is sought, so that one absolute tolerance serves all samples.
        unit = forcing * size / math.sqrt(entries(now.z))
        scale = unit.reciprocal().unsqueeze(1)
        left = left - taken - 1  # one is for f at the new iterate
        able = which & (left >= 1)
        g = [torch.where(able.unsqueeze(1), row * scale, 0.0) for row in now.residual]
        linear = replace(self.solver.linear, rtol=0.0, atol=1.0)
        run = linear.solve(product, g, budget=torch.where(able, left, 0), trust=True)
        self.spent = torch.where(able, run.evals + taken, 0)
        # The budget's last evaluations are plain ones, and so are those where I - J is singular.
        able = able & torch.isfinite(length(run.value))
        step = [
            torch.where(able.unsqueeze(1), row * unit.unsqueeze(1), plain)
            for row, plain in zip(run.value, now.residual, strict=True)
        ]
        self.size = torch.where(which, size, self.size)
        self.forcing = torch.where(which, forcing, self.forcing)
        self.share = torch.where(which, 1.0, self.share)
        self.base = choose(which, now.z, self.base)
        self.whole = choose(which, step, self.whole)
        self.begun = self.begun | which

    def _choose_forcing(self, size: Tensor, tolerance_ratio: Tensor) -> Tensor:
        forcing = GAMMA * (size / self.size) ** ALPHA
        before = GAMMA * self.forcing**ALPHA
        forcing = torch.where(before > REMEMBERED_FROM, torch.maximum(forcing, before), forcing)
        forcing = torch.where(self.begun, forcing, FIRST_FORCING)
        forcing = torch.maximum(forcing, 0.5 / tolerance_ratio)
        return forcing.clamp(self.solver.linear.rtol, LARGEST_FORCING)

    @override
    def select(self, index: Tensor) -> None:
        keep_samples(self, index)
