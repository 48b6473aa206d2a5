"""Restarted GMRES, batched over samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from equilibria.solve import linalg
from equilibria.solve.linear.base import CyclicSolver, Measured, Product, guarded
from equilibria.solve.rows import History, Rows, add_scaled, norm, subtract
from equilibria.solve.solvers.base import check_whole


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
        samples, device = active.shape[0], active.device
        from_zero = torch.stack([(row == 0).all(dim=1) for row in start.u]).all(dim=0)

        basis = History(length + 1)
        size = start.size.double() * root  # Euclidean length of the residual
        vector = _scaled(start.residual, guarded(torch.ones_like(size), size))
        basis.push(vector)
        triangle = torch.zeros(samples, length, length, dtype=torch.float64, device=device)
        right = torch.zeros(samples, length + 1, dtype=torch.float64, device=device)
        right[:, 0] = size
        rotations: list[tuple[Tensor, Tensor]] = []
        answer = torch.zeros(samples, length, dtype=torch.float64, device=device)
        used = torch.zeros(samples, dtype=torch.int64, device=device)

        for k in range(length):
            used = used + active
            vector = subtract(vector, product(vector))
            column = basis.dots(vector)[:, 0]
            vector = subtract(vector, basis.combine(column))
            again = basis.dots(vector)[:, 0]  # a second pass: one loses orthogonality in float32
            vector = subtract(vector, basis.combine(again))
            column = (column + again).double()
            height = norm(vector).double() * root
            vector = _scaled(vector, guarded(torch.ones_like(height), height))
            basis.push(vector)

            column = _rotate(column, rotations)
            length_of = torch.hypot(column[:, k], height)
            cosine = torch.where(length_of == 0, 1.0, guarded(column[:, k], length_of))
            sine = guarded(height, length_of)
            rotations.append((cosine, sine))
            triangle[:, :k, k] = column[:, :k]
            triangle[:, k, k] = length_of
            right[:, k + 1] = -sine * right[:, k]
            right[:, k] = cosine * right[:, k]

            weights = _back_substitute(triangle[:, : k + 1, : k + 1], right[:, : k + 1])
            answer[:, : k + 1] = torch.where(active.unsqueeze(1), weights, answer[:, : k + 1])
            estimate = right[:, k + 1].abs()
            # From zero the length of u is that of the weights; later the last measured one serves.
            scale = torch.where(from_zero, linalg.lengths(weights), start.scale.double() * root)
            active = active & (used < budget)
            active = active & ~(estimate <= 0.9 * (self.atol * root + self.rtol * scale))
            if not bool(active.any()):
                break
        correction = basis.combine(
            torch.nn.functional.pad(answer, (0, length + 1 - answer.shape[1]))[:, : len(basis)]
        )
        return add_scaled(start.u, 1.0, correction), used


def _scaled(rows: Rows, scale: Tensor) -> Rows:
    column = scale.unsqueeze(1)
    return [row * column.to(row.dtype) for row in rows]


def _rotate(column: Tensor, rotations: list[tuple[Tensor, Tensor]]) -> Tensor:
    column = column.clone()
    for i, (cosine, sine) in enumerate(rotations):
        above, below = column[:, i].clone(), column[:, i + 1].clone()
        column[:, i] = cosine * above + sine * below
        column[:, i + 1] = -sine * above + cosine * below
    return column


def _back_substitute(triangle: Tensor, right: Tensor) -> Tensor:
    """Solves the triangle; a direction that it maps to zero (a singular system) gets no weight."""
    diagonal = triangle.diagonal(dim1=1, dim2=2)
    patched = triangle + torch.diag_embed((diagonal == 0).to(triangle.dtype))
    right = torch.where(diagonal == 0, 0.0, right)
    weights = linalg.solve_triangle(patched, right, upper=True)
    return torch.where(torch.isfinite(weights), weights, 0.0)
