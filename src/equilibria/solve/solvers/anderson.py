"""Anderson acceleration."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import linalg
from equilibria.solve.rows import History, Rows, add_scaled, select, subtract
from equilibria.solve.solvers.base import (
    Point,
    Solver,
    Stepper,
    check_at_least,
    check_damping,
    check_whole,
)


@dataclass(frozen=True, kw_only=True)
class Anderson(Solver):
    """Anderson acceleration (type II), in difference form.

    With g_k = f(z_k) - z_k and the differences dz_j, dg_j of successive iterates and residuals,

        gamma = argmin || g_k - sum_j gamma_j dg_j ||^2
        z_{k+1} = z_k + beta g_k - sum_j gamma_j (dz_j + beta dg_j),

    which is the constrained form of Bai 2022 (thesis), Alg. 2 and eq. 6.1, without its bordered
    system. Only the newest row of the Gram matrix of the dg_j is computed; the small systems are
    solved in float64.

    History: 2 x `history` vectors of the size of z.

    Attributes:
        history: differences kept, the m of the papers; None keeps all.
        damping: beta, between 0 and 2, exclusive; 1 is undamped.
        ridge: Tikhonov term relative to the Gram matrix with its columns scaled to length 1, so
            that scaling a problem changes nothing. None: 8 times the rounding of the state's dtype.
        period: extrapolate at every `period`-th evaluation and iterate plainly in between.
    """

    history: int | None = 5
    damping: float = 1.0
    ridge: float | None = None
    period: int = 1

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history is not None:
            check_whole(self, "history", 1)
        check_damping(self)
        if self.ridge is not None:
            check_at_least(self, "ridge", 0.0)
        check_whole(self, "period", 1)

    @override
    def start(self, tracked: bool) -> Stepper:
        return _Anderson(self, tracked)


class _Anderson(Stepper):
    def __init__(self, solver: Anderson, tracked: bool) -> None:
        self.solver = solver
        self.tracked = tracked
        self.residuals = History(solver.history, tracked)  # dg_j
        self.moves = History(solver.history, tracked)  # dz_j + beta dg_j
        self.gram: Tensor | None = None
        self.waiting: dict[int, Rows] = {}  # differences whose row of the Gram matrix is missing
        self.last: tuple[Rows, Rows] | None = None
        self.evals = 0

    @override
    def step(self, now: Point) -> Rows:
        solver = self.solver
        self.evals += 1
        if self.last is not None:
            z, residual = self.last
            change = subtract(now.residual, residual)
            slot = self.residuals.push(change)
            self.moves.push(add_scaled(subtract(now.z, z), solver.damping, change))
            self.waiting[slot] = change
        self.last = (now.z, now.residual)
        plain = now.f if solver.damping == 1 else add_scaled(now.z, solver.damping, now.residual)
        if not len(self.residuals) or self.evals % solver.period:
            return plain
        gamma = self._coefficients(now.residual)
        return subtract(plain, self.moves.combine(gamma))

    def _coefficients(self, residual: Rows) -> Tensor:
        products = self.residuals.dots(*self.waiting.values(), residual)
        if self.tracked:  # no writing in place: take the whole matrix anew
            gram = self.residuals.dots(*self.residuals.kept()).double()
        else:
            gram = self._updated_gram(products)
        self.waiting.clear()
        ridge = self.solver.ridge
        if ridge is None:
            ridge = 8 * torch.finfo(residual[0].dtype).eps
        return solve_gram(gram, products[:, -1].double(), ridge).to(residual[0].dtype)

    def _updated_gram(self, products: Tensor) -> Tensor:
        samples, _, length = products.shape
        if self.gram is None or self.gram.shape[1] < length:
            room = length if self.solver.history is None else self.solver.history
            grown = products.new_zeros(samples, max(2 * length, room), max(2 * length, room))
            grown = grown.double()
            if self.gram is not None:
                known = self.gram.shape[1]
                grown[:, :known, :known] = self.gram
            self.gram = grown
        for row, slot in enumerate(self.waiting):
            self.gram[:, slot, :length] = products[:, row]
            self.gram[:, :length, slot] = products[:, row]
        return self.gram[:, :length, :length]

    @override
    def select(self, index: Tensor) -> None:
        self.residuals.select(index)
        self.moves.select(index)
        self.waiting = {slot: select(rows, index) for slot, rows in self.waiting.items()}
        if self.gram is not None:
            self.gram = self.gram.index_select(0, index)
        if self.last is not None:
            self.last = (select(self.last[0], index), select(self.last[1], index))


def solve_gram(gram: Tensor, right: Tensor, ridge: float) -> Tensor:
    """Solves (D G D + ridge I) y = D b for D y, with D scaling the columns to length 1.

    Args:
        gram: G, `(samples, k, k)`, positive semi-definite up to rounding.
        right: b, `(samples, k)`.
        ridge: Tikhonov term beside the unit diagonal.

    Returns:
        `(samples, k)`; zero (the plain step) for a sample whose system cannot be factorised.
    """
    diagonal = gram.diagonal(dim1=1, dim2=2)
    scale = torch.where(diagonal > 0, diagonal.clamp_min(1e-300).rsqrt(), 0.0)
    scaled = gram * scale.unsqueeze(1) * scale.unsqueeze(2)
    # A difference that is zero (a sample at rest) gets a unit pivot, and so the coefficient zero.
    pivots = torch.where(diagonal > 0, ridge, 1.0 + ridge)
    scaled = scaled + torch.diag_embed(pivots)
    factor, failed = linalg.cholesky(scaled)
    solution = torch.cholesky_solve((right * scale).unsqueeze(2), factor).squeeze(2) * scale
    sound = (failed == 0) & torch.isfinite(solution).all(dim=1)
    return torch.where(sound.unsqueeze(1), solution, 0.0)
