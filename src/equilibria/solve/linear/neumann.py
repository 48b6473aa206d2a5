"""The Neumann series."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve.linear.base import LinearSolver, Product
from equilibria.solve.loop import Run, iterate
from equilibria.solve.rows import Rows, length
from equilibria.solve.solvers.base import Point, Solver, Stepper, check_whole


@dataclass(frozen=True, kw_only=True)
class Neumann(LinearSolver):
    """u = sum_i A^i g, summed as u <- A u + g until the residual is small.

    The iteration of Bai 2022 (thesis), eq. 2.16 without acceleration. Converges where the spectral
    radius of A is below 1. History: none.

    Attributes:
        patience: a sample has stalled when its best residual fell by less than 1 % in this many
            products; None never gives up.
    """

    patience: int | None = 20

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience is not None:
            check_whole(self, "patience", 1)

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
        method = _Series(
            rtol=self.rtol,
            atol=self.atol,
            max_evals=self.max_evals,
            patience=self.patience,
            handicap=None if budget is None else (self.max_evals - budget).clamp_min(0),
        )
        run = iterate(
            method,
            affine(product, g),
            g if start is None else start,
            rtol=rtol,
            origin=length(g),
        )
        if budget is None or method.handicap is None:
            return run
        return replace(run, evals=torch.minimum(run.evals - method.handicap, budget))


def affine(product: Product, g: Rows):
    """u -> A u + g, for solvers that iterate a map."""

    def apply(u: Rows) -> Rows:
        return [a + b for a, b in zip(product(u), g, strict=True)]

    return apply


@dataclass(frozen=True, kw_only=True)
class _Series(Solver):
    """Plain iteration, with evaluations that a sample is taken to have had before."""

    handicap: Tensor | None

    @override
    def start(self, tracked: bool, jacobian: object = None) -> Stepper:
        return _Sum(self.handicap)


class _Sum(Stepper):
    def __init__(self, spent: Tensor | None) -> None:
        self.spent = spent

    @override
    def step(self, now: Point) -> Rows:
        self.spent = None
        return now.f

    @override
    def select(self, index: Tensor) -> None:
        pass
