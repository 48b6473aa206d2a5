"""Figure 4: where the slope is above one, iteration fails and the fixed point can be solved for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from equilibria.bench.record import Table
from equilibria.experiments import measure
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import NOT_RUN, Experiment, Page, Scale
from equilibria.experiments.methods import WORDS, methods
from equilibria.experiments.published import BAI_2021
from equilibria.solve import (
    Solution,
    Status,
    fixed_point,
)

__all__ = ["CURVES", "EXPERIMENT", "Curve", "cases", "show", "symmetric"]

RTOL, EVALS = 1e-6, 200
SOLVERS = methods(RTOL, EVALS)
DRAWN = ("plain", "broyden")
STEPS = 14
"""Evaluations of plain iteration that are drawn."""

PROBLEMS, SIZES, RADII = 16, (2, 5, 10), (0.5, 0.9, 1.1, 2.0)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A scalar map with one fixed point, f(z) = z* + slope shape(z - z*), shape'(0) = 1.

    Args:
        words: what plain iteration does on it.
        slope: f'(z*).
        shape: of the curve.
        start: of the solve.
        fixed: z*.
    """

    words: str
    slope: float
    shape: Callable[[Tensor], Tensor]
    start: float
    fixed: float = 0.5

    def __call__(self, z: Tensor) -> Tensor:
        """Return f(z)."""
        return self.fixed + self.slope * self.shape(z - self.fixed)


# tanh keeps what oscillates in sight; sinh, steeper farther out, has no second fixed point.
CURVES: Mapping[str, Curve] = {
    "below": Curve(words="converges", slope=0.7, shape=torch.tanh, start=-1.5),
    "below-negative": Curve(words="oscillates, converges", slope=-0.8, shape=torch.tanh, start=2.0),
    "above": Curve(words="diverges", slope=1.3, shape=torch.sinh, start=0.1),
    "above-negative": Curve(words="oscillates for ever", slope=-1.8, shape=torch.tanh, start=0.7),
}


def cases(scale: Scale) -> Sequence[Case]:
    """Each scalar map and each size and radius of random linear maps, with every solver."""
    used = [measure.described(solver) for solver in SOLVERS.values()]
    return [
        *(
            Case(
                key=f"slope-{name}",
                description=f"solves a scalar map of slope {curve.slope:g}",
                minutes=0.1,
                run=partial(_scalar, curve),
                settings={
                    "slope": curve.slope,
                    "start": curve.start,
                    "fixed": curve.fixed,
                    "shape": curve.shape.__name__,
                    "solvers": used,
                },
            )
            for name, curve in CURVES.items()
        ),
        *(
            Case(
                key=_linear_key(size, radius),
                description=f"solves {PROBLEMS} linear maps of {size} dimensions, radius "
                f"{radius:g}",
                minutes=0.1,
                run=partial(_linear, size, radius),
                settings={"size": size, "radius": radius, "problems": PROBLEMS, "solvers": used},
            )
            for size in SIZES
            for radius in RADII
        ),
    ]


def _linear_key(size: int, radius: float) -> str:
    return f"linear-{size}-{radius:g}"


def _scalar(curve: Curve, place: Place) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for name, solver in SOLVERS.items():
        path: list[float] = []

        def f(z: Tensor, path: list[float] = path) -> Tensor:
            path.append(float(z.detach()))
            return curve(z)

        start = torch.tensor([[curve.start]], dtype=torch.float64)
        solution = fixed_point(f, start, solver=solver)
        found[name] = {
            "path": path[:EVALS],
            "error": abs(float(solution.value.detach()) - curve.fixed),
            **_ended(solution),
        }
    return found


def _ended(solution: Solution) -> dict[str, Any]:
    return {
        "converged": float((solution.status == Status.CONVERGED).double().mean()),
        "status": [Status(code).name for code in solution.status.tolist()],
        "evals": float(solution.stats.evals.double().median()),
        "residual": float(solution.stats.residual.double().median()),
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
    # What is left of 1 stays at a distance from it at any radius.
    values = torch.where(values > 0, values * min(1.0, 0.9 / radius), values)
    return radius * vectors @ torch.diag_embed(values) @ vectors.mT


def _linear(size: int, radius: float, place: Place) -> Mapping[str, Any]:
    matrix = symmetric(size, radius, PROBLEMS)
    generator = torch.Generator().manual_seed(1)
    shift = torch.randn(PROBLEMS, size, generator=generator, dtype=torch.float64)
    exact = torch.linalg.solve(torch.eye(size, dtype=torch.float64) - matrix, shift)

    def f(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return (a @ z[:, :, None])[:, :, 0] + b

    found: dict[str, Any] = {}
    for name, solver in SOLVERS.items():
        solution = fixed_point(f, torch.zeros_like(shift), matrix, shift, solver=solver)
        error = (solution.value - exact).norm(dim=1) / exact.norm(dim=1)
        found[name] = {"error": float(error.median()), **_ended(solution)}
    return found


# --- what is shown -------------------------------------------------------------------------------


def show(done: Results) -> Page:
    """How each solver ended on each map; zigzags below, residuals beside."""
    return Page(
        [_scalars(done), _linears(done)],
        [*(_cobweb(done, name) for name in CURVES), _residuals(done), _shares(done)],
    )


def _scalars(done: Results) -> Table:
    rows: list[list[Any]] = []
    for name, curve in CURVES.items():
        found = done.get(f"slope-{name}")
        for solver, words in WORDS.items():
            if found is None:
                rows.append([curve.slope, words, NOT_RUN, *[None] * 3])
                continue
            value = found.value[solver]
            (ended,) = value["status"]
            rows.append(
                [curve.slope, words, ended, value["evals"], value["residual"], value["error"]]
            )
    return Table(
        title="Figure 4: a scalar map, slope below and above one",
        columns=["slope at z*", "solver", "ended", "evaluations", "residual", "|z - z*|"],
        rows=rows,
        note=f"To {RTOL:g}, at most {EVALS} evaluations, in float64; the state returned is the "
        "best that was evaluated. Each map has a single fixed point.",
    )


def _linears(done: Results) -> Table:
    rows: list[list[Any]] = []
    for size in SIZES:
        for radius in RADII:
            found = done.get(_linear_key(size, radius))
            row: list[Any] = [size, radius]
            for solver in WORDS:
                value = None if found is None else found.value[solver]
                row += (
                    [NOT_RUN, None] if value is None else [100 * value["converged"], value["evals"]]
                )
            rows.append(row)
    return Table(
        title=f"The same in more dimensions: {PROBLEMS} linear maps each",
        columns=[
            *("dimensions", "spectral radius"),
            *(f"{words}: {what}" for words in WORDS.values() for what in ("converged, %", "evals")),
        ],
        rows=rows,
        note="z -> A z + b, A random and symmetric, its eigenvalue of largest modulus negative; "
        f"to {RTOL:g}, at most {EVALS} evaluations, medians over the maps.",
    )


def _cobweb(done: Results, name: str) -> Panel:
    """The curve, the diagonal, plain iteration's zigzag and Broyden's iterates."""
    curve, found = CURVES[name], done.get(f"slope-{name}")
    low, high = -2.0, 3.0
    title = f"Fig. 4: slope {curve.slope:g}, plain iteration {curve.words}"
    if found is None:
        return Panel(title=title, x="z", y="f(z)", series=[])
    states = torch.linspace(low, high, 121, dtype=torch.float64)
    plain = [z for z in found.value["plain"]["path"][:STEPS] if z is not None]
    across, up = [plain[0]], [plain[0]]
    for z, after in pairwise(plain):
        across += [z, after]
        up += [after, after]
    within = [place for place, z in enumerate(across) if abs(z) < 10]
    solved = [z for z in found.value["broyden"]["path"] if z is not None]
    return Panel(
        title=title,
        x="z",
        y="f(z)",
        series=[
            Series(label="f", x=states.tolist(), y=curve(states).tolist(), colour=0),
            Series(label="f = z", x=[low, high], y=[low, high], colour=7),
            Series(
                label="plain iteration",
                x=[across[place] for place in within],
                y=[up[place] for place in within],
                colour=1,
                style="dashed",
            ),
            Series(
                label="Broyden",
                x=solved,
                y=curve(torch.tensor(solved, dtype=torch.float64)).tolist(),
                colour=2,
                style="marked",
            ),
        ],
        span_x=(low, high),
        span_y=(low, high),
    )


def _residuals(done: Results) -> Panel:
    """|f(z) - z| at each state that was evaluated."""
    series: list[Series] = []
    for colour, (name, curve) in enumerate(CURVES.items()):
        found = done.get(f"slope-{name}")
        for solver in DRAWN if found is not None else ():
            assert found is not None
            path = [z for z in found.value[solver]["path"] if z is not None][: 3 * STEPS]
            states = torch.tensor(path, dtype=torch.float64)
            series.append(
                Series(
                    label=f"slope {curve.slope:g}" if solver == "broyden" else "",
                    x=list(range(1, len(path) + 1)),
                    y=(curve(states) - states).abs().clamp(max=1e3).tolist(),
                    colour=colour,
                    style="line" if solver == "broyden" else "dashed",
                )
            )
    return Panel(
        title="Broyden (solid), plain iteration (dashed)",
        x="evaluations",
        y="|f(z) - z|",
        series=series,
        log_y=True,
        whole_x=True,
        span_y=(1e-9, 1e3),
    )


def _shares(done: Results) -> Panel:
    """Share of the linear maps that each solver solves, by the spectral radius."""
    series: list[Series] = []
    for solver, words in WORDS.items():
        known = [
            (place, [done[_linear_key(size, radius)].value[solver]["converged"] for size in SIZES])
            for place, radius in enumerate(RADII)
            if all(_linear_key(size, radius) in done for size in SIZES)
        ]
        series.append(
            Series(
                label=words,
                x=[place for place, _ in known],
                y=[100 * math.fsum(shares) / len(shares) for _, shares in known],
                style="bars",
            )
        )
    return Panel(
        title=f"linear maps of {', '.join(map(str, SIZES))} dimensions",
        x="spectral radius",
        y="solved, %",
        series=series,
        names=[f"{radius:g}" for radius in RADII],
        span_y=(0, 135),
    )


EXPERIMENT = Experiment(
    name="jacobian/slope",
    paper=BAI_2021,
    subject="Figure 4",
    description="Slope above one: plain iteration fails, Broyden and Newton find the fixed point.",
    cases=cases,
    show=show,
)
