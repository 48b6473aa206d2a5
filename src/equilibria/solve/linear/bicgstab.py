"""BiCGSTAB, batched over samples."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve.linear.base import Goal, LinearSolver, Measured, Product, inverse
from equilibria.solve.rows import Rows, add_scaled, choose, dot, length, subtract


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
            stabiliser = subtract(half, product(half))
            omega = dot(stabiliser, half) * inverse(dot(stabiliser, stabiliser))
            used = used + 2 * active
            proposal = add_scaled(add_scaled(u, alpha, direction), omega, half)
            remainder = add_scaled(half, -omega, stabiliser)
            sound = torch.isfinite(alpha) & torch.isfinite(omega)
            u = choose(active & sound, proposal, u)
            r = choose(active & sound, remainder, r)
            # A u + g = u + r, so both sides of the tolerance are at hand.
            reached = length(r) <= 0.9 * goal.limit(length(add_scaled(u, 1.0, r)), r)
            previous, rho = rho, dot(shadow, r)
            broken = ~sound | (rho == 0) | (omega == 0) | ~torch.isfinite(rho)
            active = active & ~reached & ~broken & (used + 2 <= budget)
            beta = rho * inverse(previous) * alpha * inverse(omega)
            direction = add_scaled(r, beta, add_scaled(direction, -omega, image))
        return u, used, length(r)
