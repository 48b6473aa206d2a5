"""The Neumann series."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import private
from equilibria.solve.linear.base import Goal, LinearSolver, Measured, Product
from equilibria.solve.monitor import STALL
from equilibria.solve.options import check_whole
from equilibria.solve.rows import Rows, add_scaled, choose, length


@dataclass(frozen=True, kw_only=True)
class Neumann(LinearSolver):
    """u = sum_i A^i g, summed as u <- A u + g until the residual is small.

    The iteration of Bai 2022 (thesis), eq. 2.16 without acceleration. Converges where the spectral
    radius of A is below 1. History: one vector of the size of u.

    Attributes:
        patience: a sample has stalled when its residual fell by less than 1 % in this many
            products; None never gives up.
    """

    patience: int | None = 20

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patience is not None:
            check_whole(self, "patience", 1)

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


def affine(product: Product, g: Rows) -> Callable[[Rows], Rows]:
    """u -> A u + g, for solvers that iterate a map."""

    def apply(u: Rows) -> Rows:
        return [a + b for a, b in zip(product(u), g, strict=True)]

    return apply
