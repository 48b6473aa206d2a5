"""Networks of each ensemble, solved at many scales by several solvers from two starts."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from equilibria.experiments.studies.initialisation._wide import weight
from equilibria.experiments.study import Context
from equilibria.solve import Solution, Solver, SolveWarning, Status, fixed_point
from equilibria.stability import spectral_radius
from equilibria.theory import as_activation

__all__ = ["SAME", "solved"]

SAME = 1e-2
"""Relative distance within which two solutions are one."""


def solved(
    context: Context, *, solvers: Mapping[str, Solver], width: int, draws: int, inputs: int,
    scales: Sequence[float],
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """One row for each `scale` and `solver`, as `_summary` gives it."""
    factors: Any = context.factors
    phi = as_activation(factors["activation"])
    drawn = [weight(factors["ensemble"], width, seed, torch.float32) for seed in range(draws)]
    generator = torch.Generator().manual_seed(1000)
    x = torch.randn(draws * inputs, width, generator=generator)
    # Farther from the solution than the state's own length: another start finds another one.
    starts = (torch.zeros_like(x), 2 * torch.randn(x.shape, generator=generator))
    for scale in scales:
        scaled = scale * torch.stack(drawn).mT

        def f(z: Tensor, x: Tensor, w: Tensor = scaled) -> Tensor:
            return phi((z.unflatten(0, (draws, inputs)) @ w).flatten(0, 1)) + x

        for name, solver in solvers.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SolveWarning)
                found = [fixed_point(f, start, x, solver=solver) for start in starts]
            yield {"scale": scale, "solver": name, **_summary(f, x, *found)}


@torch.no_grad()
def _summary(f: Any, x: Tensor, zero: Solution, random: Solution) -> dict[str, Any]:
    """How the solves from zero ended, whether another start agrees, how stable what is found is.

    `converged`, `both` starts converged, `same`: of these, with one solution (shares); `evals`,
    `residual`, `radius` (medians) and `unstable`, the share of radii above 1.
    """
    solved, again = (each.status == Status.CONVERGED for each in (zero, random))
    both = solved & again
    distance = (zero.value - random.value).norm(dim=1) / zero.value.norm(dim=1)
    row = {
        "converged": solved.double().mean().item(),
        "residual": zero.stats.residual.double().median().item(),
        "both": both.double().mean().item(),
        "same": (distance[both] < SAME).double().mean().item(),  # NaN of none
    }
    if solved.any():
        radius = spectral_radius(f, zero.value, x)[solved].double()
        row["evals"] = zero.stats.evals[solved].double().median().item()
        row["radius"] = radius.median().item()
        row["unstable"] = (radius > 1).double().mean().item()
    return row
