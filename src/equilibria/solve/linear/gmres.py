"""Restarted GMRES, batched over samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import linalg
from equilibria.solve.linear.base import Goal, LinearSolver, Measured, Product
from equilibria.solve.linear.krylov import CANCELLATION, Krylov
from equilibria.solve.options import check_whole
from equilibria.solve.rows import Rows, length

# A cycle ends a little below the tolerance, for its residual is an estimate.
MARGIN = 0.95


@dataclass(frozen=True, kw_only=True)
class GMRES(LinearSolver):
    """GMRES on (I - A) u = g: the minimal residual over the Krylov space of the cycle.

    Converges for any nonsingular I - A when `restart` spans the space, also where the spectral
    radius of A is above 1. The basis is orthonormal to a few units of rounding.

    History: vectors of the size of u, one a product and one more, up to `restart` + 1, in room that
    doubles until it has reached that or what `max_evals` allows. Source: Saad and Schultz 1986.

    Attributes:
        restart: products in a cycle, >= 1.
    """

    restart: int = 20

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self, "restart", 1)

    @override
    def cycle(
        self, product: Product, start: Measured, goal: Goal, budget: Tensor, active: Tensor
    ) -> tuple[Rows, Tensor, Tensor]:
        limit = min(self.restart, int(torch.where(active, budget, 0).max()))
        tight = bool((active & (budget < limit)).any())
        test = _Tolerance(goal, start)
        basis = Krylov(start.residual, test.size, limit)
        # After each product: who goes on, and whose newest vector is not orthogonal yet.
        flags = torch.zeros(limit, 2, *active.shape, dtype=torch.bool, device=active.device)
        going = active
        for k in range(limit):
            height, shadow = basis.extend(product(basis.vector(k)))
            if tight:
                going = going & (budget > k + 1)
            alive = torch.bitwise_and(going, test.above(basis.total), out=flags[k, 0])
            weak = torch.sub(shadow, height, alpha=CANCELLATION) > 0
            torch.bitwise_and(alive, weak, out=flags[k, 1])
            seen: Any = flags[k].any(dim=1)  # one look at the device
            some, again = seen.tolist()
            if again and k + 1 < limit:
                basis.again(flags[k, 1] & (height > basis.eps))
                alive.bitwise_and_(test.above(basis.total))
                some = bool(alive.any())
            going = alive
            if not some:
                break
        used = active + flags[: basis.length - 2, 0].sum(dim=0)
        change, size = _shortest(basis, used, test.size)
        u = change if start.zero else [a + b for a, b in zip(start.u, change, strict=True)]
        return u, used, size


class _Tolerance:
    """Says of the residual that a Krylov space allows whether it is above the tolerance.

    With total = sum_j y_j (y_j, c_j) over the vectors of the space, the residual has the length
    size / sqrt(total[0]) and its solution the length size |total[1:]| / total[0].
    """

    def __init__(self, goal: Goal, start: Measured) -> None:
        self.size = start.size.clamp_min(torch.finfo(start.size.dtype).tiny)
        self.zero = start.zero
        self.rtol = goal.criterion.loosest * MARGIN
        # A cycle that has won all digits there are is done, whatever the tolerance.
        floor = torch.full_like(self.size, torch.finfo(self.size.dtype).eps)
        if not start.zero:  # the change of u is taken to be small beside it
            limit = goal.limit(start.scale, start.u).clamp_min(0.0)
            floor = floor + MARGIN * limit / self.size
        elif goal.absolute:
            floor = floor + MARGIN * goal.absolute / self.size
        self.floor = floor

    def above(self, total: Tensor) -> Tensor:
        squares = total[:, 0]
        excess = squares.sqrt()
        if self.zero:
            u = linalg.lengths(total[:, 1:])
            if isinstance(self.rtol, Tensor):
                u, scale = u * self.rtol, 1.0
            else:
                scale = self.rtol
            excess = torch.sub(excess, u, alpha=scale)
        return torch.addcmul(excess, squares, self.floor, value=-1) > 0  # not NaN either


def _shortest(basis: Krylov, used: Tensor, size: Tensor) -> tuple[Rows, Tensor]:
    """The change of u that leaves the minimal residual, of each sample after its own products.

    Returns:
        The change, and the length of the residual.
    """
    count = basis.length - 1
    slots = torch.arange(count + 1, device=used.device)
    kept = slots <= used.unsqueeze(1)
    coordinates = basis.table() * kept.unsqueeze(2)
    total = (coordinates[:, :, :1].transpose(1, 2) @ coordinates).squeeze(1)
    squares = total[:, 0]
    weights = total[:, 1 : count + 1] * (-size / squares).unsqueeze(1)
    change = basis.combine(weights)
    left = size * squares.rsqrt()
    if bool(torch.isfinite(length(change)).all()):
        return change, left
    # A sample's vectors may have become NaN after it had finished; or they are finite, and its
    # space was exhausted without a solution in it, which leaves no digit of the weights.
    healthy = basis.forget(kept)
    coordinates = basis.table()
    total = (coordinates[:, :, :1].transpose(1, 2) @ coordinates).squeeze(1)
    weights = total[:, 1 : count + 1] * (-size / total[:, 0]).unsqueeze(1)
    lost = healthy & ~torch.isfinite(weights).all(dim=1)
    left = size * total[:, 0].rsqrt()
    return basis.combine(torch.where(lost.unsqueeze(1), 0.0, weights)), left
