"""Restarted GMRES, batched over samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import linalg
from equilibria.solve.linear.base import CyclicSolver, Measured, Product, inverse
from equilibria.solve.rows import History, Rows, add_scaled, norm, subtract
from equilibria.solve.solvers.base import check_whole

# From u = 0 the length of u, which the tolerance is relative to, is known only by computing u: done
# once the residual would suffice for a u so many times as long as g.
NEAR = 30.0


@dataclass(frozen=True, kw_only=True)
class GMRES(CyclicSolver):
    """GMRES on (I - A) u = g: the least residual over the Krylov space of the cycle.

    Converges for any nonsingular I - A when `restart` spans the space, also where the spectral
    radius of A is above 1. The Arnoldi basis is orthogonalised twice; rotations and the small
    triangular systems are in float64.

    History: `restart` + 1 vectors of the size of u. Source: Saad and Schultz 1986.

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
        self, product: Product, start: Measured, budget: Tensor, active: Tensor
    ) -> tuple[Rows, Tensor]:
        root = math.sqrt(sum(row.shape[1] for row in start.residual))
        length = min(self.restart, int(torch.where(active, budget, 0).max()))
        from_zero = torch.stack([(row == 0).all(dim=1) for row in start.u]).all(dim=0)
        size = start.size.double() * root  # Euclidean length of the residual
        guess = torch.where(from_zero, NEAR * size, start.scale.double() * root)
        basis = History(length + 1)
        vector = _scaled(start.residual, inverse(size))
        basis.push(vector)
        least = _LeastSquares(size, length)
        answer = size.new_zeros(size.shape[0], length + 1)
        used = torch.zeros_like(budget)

        for k in range(length):
            used = used + active
            vector = subtract(vector, product(vector))
            column = basis.dots(vector)[:, 0]
            vector = subtract(vector, basis.combine(column))
            again = basis.dots(vector)[:, 0]  # a second pass: one loses orthogonality in float32
            vector = subtract(vector, basis.combine(again))
            height = norm(vector).double() * root
            vector = _scaled(vector, inverse(height))
            basis.push(vector)
            estimate = least.append((column + again).double(), height)

            over = (used >= budget) | (k + 1 == length)
            near = estimate <= self.atol * root + self.rtol * guess
            if not bool((active & (over | near)).any()):
                continue
            weights = least.solution()
            scale = torch.where(from_zero, linalg.lengths(weights), guess)
            reached = near & (estimate <= 0.9 * (self.atol * root + self.rtol * scale))
            stops = active & (over | reached)
            answer[:, : k + 1] = torch.where(stops.unsqueeze(1), weights, answer[:, : k + 1])
            active = active & ~stops
            if not bool(active.any()):
                break
        return add_scaled(start.u, 1.0, basis.combine(answer[:, : len(basis)])), used


class _LeastSquares:
    """min || size e_1 - H y || for a Hessenberg matrix H that grows by a column at a time."""

    def __init__(self, size: Tensor, columns: int) -> None:
        samples = size.shape[0]
        self.k = 0
        self.triangle = size.new_zeros(samples, columns, columns)
        self.right = size.new_zeros(samples, columns + 1)
        self.right[:, 0] = size
        self.rotation = torch.eye(columns + 1, dtype=size.dtype, device=size.device)
        self.rotation = self.rotation.repeat(samples, 1, 1)  # all Givens rotations so far

    def append(self, column: Tensor, height: Tensor) -> Tensor:
        """Takes H's next column and the entry below its diagonal; returns the least residual."""
        k = self.k
        self.k += 1
        rotation, right = self.rotation, self.right
        column = (rotation[:, : k + 1, : k + 1] @ column.unsqueeze(2)).squeeze(2)
        pivot = torch.hypot(column[:, k], height)
        scale = inverse(pivot)
        cosine = torch.where(pivot == 0, 1.0, column[:, k] * scale)
        sine = height * scale
        self.triangle[:, :k, k] = column[:, :k]
        self.triangle[:, k, k] = pivot
        turned = rotation[:, k, : k + 1].clone()
        rotation[:, k, : k + 1] = cosine.unsqueeze(1) * turned
        rotation[:, k, k + 1] = sine
        rotation[:, k + 1, : k + 1] = -sine.unsqueeze(1) * turned
        rotation[:, k + 1, k + 1] = cosine
        right[:, k + 1] = -sine * right[:, k]
        right[:, k] = cosine * right[:, k]
        return right[:, k + 1].abs()

    def solution(self) -> Tensor:
        """y; a direction that H maps to zero (a singular system) gets no weight."""
        k = self.k
        triangle, right = self.triangle[:, :k, :k], self.right[:, :k]
        diagonal = triangle.diagonal(dim1=1, dim2=2)
        patched = triangle + torch.diag_embed((diagonal == 0).to(triangle.dtype))
        weights = linalg.solve_triangle(patched, torch.where(diagonal == 0, 0.0, right), upper=True)
        return torch.where(torch.isfinite(weights), weights, 0.0)


def _scaled(rows: Rows, scale: Tensor) -> Rows:
    column = scale.unsqueeze(1)
    return [row * column.to(row.dtype) for row in rows]
