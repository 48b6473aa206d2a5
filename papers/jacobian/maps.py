"""Maps whose fixed points are known: scalar ones, and random linear ones; how they are drawn."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from equilibria.run.report.panel import Series
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.study import Context
from equilibria.solve import Solution, Solver, Status, fixed_point

FIXED = 0.5
"""z*, the fixed point of every scalar map."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A scalar map with one fixed point, f(z) = z* + slope shape(z - z*), shape'(0) = 1.

    `words` say what plain iteration does on it from `start`.
    """

    words: str
    slope: float
    shape: Literal["tanh", "sinh"]
    start: float

    def __call__(self, z: Tensor) -> Tensor:
        """Return f(z)."""
        return FIXED + self.slope * getattr(torch, self.shape)(z - FIXED)


# tanh keeps what oscillates in sight; sinh, steeper farther out, has no second fixed point.
CURVES = {
    curve.slope: curve
    for curve in (
        Curve(words="converges", slope=0.7, shape="tanh", start=-1.5),
        Curve(words="oscillates, converges", slope=-0.8, shape="tanh", start=2.0),
        Curve(words="diverges", slope=1.3, shape="sinh", start=0.1),
        Curve(words="oscillates forever", slope=-1.8, shape="tanh", start=0.7),
    )
}


@identified_as("_maps.scalar")
def scalar(
    context: Context, *, curve: Curve, solvers: Mapping[str, Solver]
) -> Iterable[dict[str, Any]]:
    """How a solve of a scalar map ended, by `solver`; and `z`, f(z) and `gap` = |f(z) - z| at each
    `evaluation`, of the first 42."""
    start = torch.tensor([[curve.start]], dtype=torch.float64)
    for name, solver in solvers.items():
        path: list[Tensor] = []

        def f(z: Tensor, path: list[Tensor] = path) -> Tensor:
            path.append(z.detach().flatten())
            return curve(z)

        solution = fixed_point(f, start, solver=solver)
        ended = {"solver": name, "status": Status(int(solution.status)).name}
        yield ended | _summarize(solution, (solution.value - FIXED).abs())
        for number, z in enumerate(path[:42], start=1):
            row = {"z": z, "f": curve(z), "gap": (curve(z) - z).abs()}
            row = {key: float(value) for key, value in row.items()}
            yield {"solver": name, "evaluation": number} | row


@identified_as("_maps.linear")
def linear(
    context: Context, *, count: int, solvers: Mapping[str, Solver]
) -> Iterable[dict[str, Any]]:
    """How solves of random linear maps ended, by `solver`: converged share, medians over maps."""
    size, radius = int(context.factors["dimensions"]), float(context.factors["radius"])
    matrix = symmetric(size, radius, count)
    generator = torch.Generator().manual_seed(1)
    shift = torch.randn(count, size, generator=generator, dtype=torch.float64)
    exact = torch.linalg.solve(torch.eye(size, dtype=torch.float64) - matrix, shift)

    def f(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return (a @ z[:, :, None])[:, :, 0] + b

    for name, solver in solvers.items():
        solution = fixed_point(f, torch.zeros_like(shift), matrix, shift, solver=solver)
        error = (solution.value - exact).norm(dim=1) / exact.norm(dim=1)
        yield {"solver": name} | _summarize(solution, error)


def _summarize(solution: Solution, error: Tensor) -> dict[str, Any]:
    figures = {"evals": solution.stats.evals, "residual": solution.stats.residual, "error": error}
    return {
        "converged": float((solution.status == Status.CONVERGED).double().mean()),
        **{name: float(each.detach().double().median()) for name, each in figures.items()},
    }


def symmetric(size: int, radius: float, count: int, seed: int = 0) -> Tensor:
    """Return random symmetric matrices (count, size, size) of one spectral radius.

    The eigenvalue of largest modulus is negative: with one at 1 there would be no fixed point.
    """
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn(count, size, size, generator=generator, dtype=torch.float64)
    values, vectors = torch.linalg.eigh(whole + whole.mT)
    values = values / values.abs().amax(1, keepdim=True)
    values = values * values.gather(1, values.abs().argmax(1, keepdim=True)).neg().sign()
    # The positive ones stay at a distance from 1 at any radius.
    values = torch.where(values > 0, values * min(1.0, 0.9 / radius), values)
    return radius * vectors @ torch.diag_embed(values) @ vectors.mT


def zigzag(states: Iterable[float], reach: float = math.inf, **options: Any) -> Series:
    """Return plain iteration between the curve and the diagonal, from z, f(z), f(f(z)) and so on.

    Up or down to (z, f(z)), then across to (f(z), f(z)); what begins beyond `reach` is left out.
    """
    twice = [z for z in states for _ in range(2)]
    corners = [(x, y) for x, y in pairwise(twice) if abs(x) < reach]
    x, y = zip(*corners, strict=True)
    return Series(x=x, y=y, style="dashed", **options)
