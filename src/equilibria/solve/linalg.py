"""torch.linalg with types: torch's own stubs leave these functions untyped."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_linalg: Any = torch.linalg


def lengths(matrix: Tensor) -> Tensor:
    """Euclidean length of each row: `(rows, entries)` -> `(rows,)`."""
    return _linalg.vector_norm(matrix, dim=1)


def largest(matrix: Tensor) -> Tensor:
    """The largest absolute entry of each row: `(rows, entries)` -> `(rows,)`."""
    return _linalg.vector_norm(matrix, ord=float("inf"), dim=1)


def inner(a: Tensor, b: Tensor) -> Tensor:
    """Inner product along the last axis."""
    return _linalg.vecdot(a, b)


def cholesky(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The lower factor, and a number that is not zero where there is none. Never raises."""
    factor, failed = _linalg.cholesky_ex(matrix)
    return factor, failed


def split(rows: Tensor, widths: list[int]) -> list[Tensor]:
    """Cuts `(samples, sum of widths)` into one matrix a width."""
    anything: Any = rows
    return list(anything.split(widths, dim=1))


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Solves `(batch, k, k)` for right sides `(batch, k)`; not finite where singular."""
    solution: Tensor = _linalg.solve_ex(matrix, right.unsqueeze(2))[0]
    return solution.squeeze(2)


def solve_lower(factor: Tensor, right: Tensor) -> Tensor:
    """Solves L x = b, L lower triangular `(batch, k, k)`, for right sides `(batch, k)`."""
    solution: Tensor = _linalg.solve_triangular(factor, right.unsqueeze(2), upper=False)
    return solution.squeeze(2)


def solve_lower_transposed(factor: Tensor, right: Tensor) -> Tensor:
    """Solves L^T x = b likewise."""
    upper = factor.transpose(1, 2)
    solution: Tensor = _linalg.solve_triangular(upper, right.unsqueeze(2), upper=True)
    return solution.squeeze(2)


def svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The thin singular value decomposition U, S, V^H."""
    return _linalg.svd(matrix, full_matrices=False)


def eigenvalues(matrix: Tensor) -> Tensor:
    """Of `(batch, k, k)`, finite: `(batch, k)` complex."""
    return _linalg.eigvals(matrix)
