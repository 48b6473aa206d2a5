"""How wrong the tolerances in use may make a gradient: (adjoint + L forward) / sigma_min(I - J)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.solve import LOOSEST, Broyden, Implicit, Solution, Status, fixed_point
from equilibria.stability.examination import Bound, Summary
from equilibria.stability.jacobian import JacobianOperator
from equilibria.stability.patient import Exact, Patient
from equilibria.stability.trees import rows_of

__all__ = ["bound_error", "smallest_singular_value"]

_SOLVER = Broyden(rtol=1e-3, max_evals=300, patience=60, memory=60)


def smallest_singular_value(
    jacobian: JacobianOperator, generator: torch.Generator, rounds: int = 5
) -> Tensor:
    """Estimates sigma_min(I - J) of each sample, (samples,), from above; NaN where a solve failed.

    Inverse iteration on (I - J)^T (I - J): each round solves two systems, by Broyden's method on
    v -> J v + b. The error falls by (sigma_min / the next singular value)^4 in a round.
    """
    x = _unit(jacobian.noise(generator))
    reached = torch.ones(len(x), dtype=torch.bool, device=x.device)
    size = torch.ones(len(x), dtype=x.dtype, device=x.device)
    for _ in range(rounds):
        for product in (jacobian.transposed, jacobian.direct):
            rows, converged = _solve(product, x)
            reached = reached & converged
            size = torch.linalg.vector_norm(rows, dim=1)
            x = _unit(rows)
    # Each solve multiplies by at most 1 / sigma_min, and by just that in the end.
    return torch.where(reached & size.isfinite(), 1 / size, math.nan)


def _solve(product: Callable[[Tensor], Tensor], b: Tensor) -> tuple[Tensor, Tensor]:
    """(I - A)^-1 b for each row, A v = product(v), and whether it was found."""
    with torch.no_grad():
        sol = fixed_point(lambda v: product(v) + b, torch.zeros_like(b), solver=_SOLVER)
    return sol.value, sol.status == Status.CONVERGED


def bound_error(
    patient: Patient,
    exact: Exact,
    used: Solution,
    reference: Solution,
    scalar: Callable[[Any], Tensor],
    generator: torch.Generator,
) -> Bound | None:
    """Estimates the bound on the adjoint's error, and measures the error.

    Args:
        patient: as it trains.
        exact: the same in float64.
        used: training's solution, after its backward.
        reference: the exact one, after its backward.
        scalar: output of the module -> what was differentiated.
        generator: of the start of an iteration.

    Returns:
        None where the adjoint solves nothing, or no sample converged in all solves.
    """
    adjoint = patient.layer.adjoint
    if not isinstance(adjoint, Implicit) or used.adjoint is None or reference.adjoint is None:
        return None
    coupled = patient.layer.coupled
    good = torch.stack([s.flatten() == Status.CONVERGED for s in _statuses(used, reference)]).all(0)
    if not bool(good.any()):
        return None
    there, here = reference.value, pytree.tree_map(lambda x: x.detach().double(), used.value)
    u = rows_of(reference.adjoint.value, coupled)
    found = rows_of(used.adjoint.value, coupled)
    lengths = torch.linalg.vector_norm(u, dim=1)
    moved = _field(exact, here, u, scalar) - _field(exact, there, u, scalar)
    left = used.stats.residual.double()
    lipschitz = torch.linalg.vector_norm(moved, dim=1) / lengths / left
    lipschitz = torch.where(left > 0, lipschitz, 0)
    cell, operands = exact.patient.layer.cell, exact.operands
    at = JacobianOperator(cell, there, operands, coupled)
    sigma = smallest_singular_value(at, generator)
    forward, backward = patient.layer.solver.finest, torch.full_like(left, adjoint.finest)
    if adjoint.follow is not None:
        reached = (adjoint.follow * left).clamp_max(LOOSEST)
        backward = torch.maximum(backward, reached)
    error = (backward + lipschitz * forward) / sigma
    measured = torch.linalg.vector_norm(found - u, dim=1) / lengths
    masked = [torch.where(good, x, math.nan) for x in (sigma, lipschitz, error, measured)]
    return Bound(
        forward=forward,
        adjoint=float(backward[good].mean()),
        sigma_min=Summary.of(masked[0]),
        lipschitz=Summary.of(masked[1]),
        error=Summary.of(masked[2]),
        measured=Summary.of(masked[3]),
    )


def _statuses(used: Solution, reference: Solution) -> list[Tensor]:
    assert used.adjoint is not None and reference.adjoint is not None
    return [used.status, used.adjoint.status, reference.status, reference.adjoint.status]


def _field(exact: Exact, z: Any, u: Tensor, scalar: Callable[[Any], Tensor]) -> Tensor:
    """h(z) = J(z)^T u + dL/dz, in rows: whose zero minus u is the adjoint."""
    layer = exact.patient.layer
    jacobian = JacobianOperator(layer.cell, z, exact.operands, layer.coupled)
    own = exact.patient.gradient_at(z, scalar)
    return jacobian.transposed(u) + rows_of(own, layer.coupled)


def _unit(rows: Tensor) -> Tensor:
    return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(1e-300)
