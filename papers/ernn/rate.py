"""Distance of Euler steps from the equilibrium, and what bounds their rate."""

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

import torch

from equilibria.run.studies.results import Frame
from equilibria.run.studies.study import Context, Point, Scale, Study, grid
from equilibria.run.studies.views import Cell, Lines, Pivot
from equilibria.zoo.recurrent.model import ERNNOptions
from equilibria.zoo.recurrent.model.diagnostics import euler_steps
from equilibria.zoo.recurrent.model.ernn import ERNNCell

SIZES, ACTIVATIONS = (0.1, 0.5, 1.0, 1.9, 2.5), ("relu", "tanh", "sigmoid")
WIDTH, CHANNELS, SAMPLES, STEPS, BOUND = 32, 9, 64, 60, 0.9


def steps(context: Context, *, activation: Any, size: float) -> Iterable[dict[str, Any]]:
    """Distance to the equilibrium after each Euler step, and the conditions of the theorems."""
    torch.manual_seed(0)
    options = ERNNOptions(activation=activation, bound=BOUND)
    cell = cast(ERNNCell, options.build(CHANNELS, WIDTH)).double()
    x, before = torch.randn(SAMPLES, CHANNELS).double(), torch.randn(SAMPLES, WIDTH).double()
    found = euler_steps(cell, x, before, size=size, steps=STEPS)
    for k in range(STEPS):
        yield {
            "step": k + 1,
            "distance": float(found.distance[k].median()),
            "rate": float(found.rate[k].median()),
            "norm": float(found.norm[k].median()),
            "norm_max": float(found.norm[k].max()),
            "holds": float((found.condition[k] < 0).double().mean()),
        }


def mean_rate(rows: Frame) -> Cell:
    """The mean factor of the distance per step, down to 1e-10; None where it grows."""
    near = rows[rows["distance"] > 1e-10]
    rate = (near["distance"].iloc[-1] / near["distance"].iloc[0]) ** (1 / (len(near) - 1 or 1))
    return round(float(rate), 4) if rate < 1 and len(near) > 1 else "does not converge"


def points(scale: Scale) -> list[Point]:
    return [
        Point(each, [partial(steps, **each)]) for each in grid(activation=ACTIVATIONS, size=SIZES)
    ]


STUDY = Study(
    item="Figure 6, Theorem 2 and Corollary 1",
    title="Linear convergence of the Euler steps",
    note=f"Untrained dense cells of {WIDTH} units whose U has singular values up to {BOUND:g}, "
    f"float64, {SAMPLES} inputs and states drawn from a Gaussian; medians. Eq. 12 is a local "
    "condition: where it holds at the states that are visited and yet nothing converges, the steps "
    "end in a cycle.",
    points=points,
    views=[
        Pivot(
            title="Rate of convergence",
            index={"activation": "activation", "size": "eta"},
            whole=True,
            values={
                "measured rate": mean_rate,
                "|I + eta dF|, median": lambda rows: round(rows["norm"].iloc[-1], 4),
                "largest": lambda rows: round(rows["norm_max"].max(), 4),
                "eq. 12 holds, %": lambda rows: round(100 * rows["holds"].mean(), 1),
                f"distance after {STEPS} steps": lambda rows: f"{rows['distance'].iloc[-1]:.1e}",
            },
        ),
        *(
            Lines(
                "step",
                "distance",
                by=["size"],
                where={"activation": activation},
                label=lambda size: f"eta {size:g}",
            ).chart(
                f"distance to the equilibrium, {activation}",
                "Euler step",
                "|h - h_eq| / |h_0 - h_eq|",
                log_y=True,
                span_y=(1e-14, 10),
            )
            for activation in ACTIVATIONS
        ),
    ],
)
