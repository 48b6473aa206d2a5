"""Figures 5 and 9 of Bai et al. 2021, drawn from the weights of the trained networks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch

from equilibria.experiments.data import Data
from equilibria.experiments.studies.jacobian._maps import zigzag
from equilibria.experiments.studies.jacobian._toy import SPAN, WEIGHTS, ToyCell, target
from equilibria.experiments.views import Chart, curve
from equilibria.run.report.panel import Series
from equilibria.run.report.surfaces import Curve, Surface, SurfacePlot

GAMMAS = (0.0, 2.0, 4.0)
"""Weights of the penalty in Figure 5."""

X, SLICES, HEIGHTS = torch.linspace(*SPAN, 160), (-1.0, 0.5, 1.5), (-6.0, 6.0)


def _cells(data: Data) -> dict[float, ToyCell]:
    """Networks of seed 0, by gamma; those that were trained."""
    rows = data.series("unit", setting="ours", gamma=GAMMAS)
    return {
        gamma: ToyCell(torch.tensor(units[list(WEIGHTS)].to_numpy("float32").T[:, None]))
        for gamma, units in rows.groupby("gamma")
    }


@dataclass(frozen=True)
class Landscape:
    """f(z; x) in space, the plane z, the equilibria that lie on both, and a slice."""

    gamma: float

    def render(self, data: Data, /) -> SurfacePlot:
        """Draw the surface; none of a network that was not trained."""
        title = f"Fig. 5: f(z; x), gamma = {self.gamma:g}"
        plot = SurfacePlot(title=title, x="x", y="z", z="z out", surfaces=[], heights=HEIGHTS)
        cell = _cells(data).get(self.gamma)
        if cell is None:
            return plot
        x, z = torch.linspace(*SPAN, 18), torch.linspace(*HEIGHTS, 18)
        plane, at = torch.meshgrid(z, x, indexing="ij")
        surface = partial(Surface, x=x.tolist(), y=z.tolist())
        found, place = cell.solved(X).value.tolist(), torch.full_like(z, SLICES[0])
        cut = cell(z, place).tolist()
        return replace(
            plot,
            surfaces=[
                surface(label="f(z; x)", z=cell(plane, at).tolist(), colour=2),
                surface(label="z out = z", z=plane.tolist(), colour=3, alpha=0.35),
            ],
            curves=[
                Curve(label="equilibria z*(x)", x=X.tolist(), y=found, z=found, dashed=True),
                Curve(label=f"x = {SLICES[0]:g}", x=place.tolist(), y=z.tolist(), z=cut, colour=0),
            ],
        )


def _slices(data: Data, gamma: float) -> Iterable[Series]:
    """f(.; x) at some inputs, and the zigzag of plain iteration from zero on each."""
    cell, z = _cells(data).get(gamma), torch.linspace(*HEIGHTS, 121)
    if cell is None:
        return
    yield Series(label="z out = z", x=HEIGHTS, y=HEIGHTS, colour=7)
    for colour, x in enumerate(SLICES):
        f = cell(z, torch.full_like(z, x)).tolist()
        yield Series(label=f"x = {x:g}", x=z.tolist(), y=f, colour=colour)
        states = [0.0]
        for _ in range(12):
            states.append(cell(torch.tensor(states[-1:]), torch.tensor([x])).item())
        yield zigzag(states, label="", colour=colour)


def _along(data: Data, *, slope: bool = False) -> Iterable[Series]:
    """The fixed points of the networks against x, or the slopes there."""
    for colour, (gamma, cell) in enumerate(_cells(data).items()):
        found = cell.solved(X).value
        y = cell.slope(found, X).abs() if slope else found
        yield Series(label=f"gamma = {gamma:g}", x=X.tolist(), y=y.tolist(), colour=colour)


H = curve("h(x)", X.tolist(), lambda x: target(torch.tensor(x)).item())
SLOPES = partial(_along, slope=True)
VIEWS = [
    *(Landscape(gamma) for gamma in GAMMAS),
    *(
        Chart(
            title=f"Fig. 5: slices, plain iteration from 0, gamma = {gamma:g}",
            x="z",
            y="f(z; x)",
            marks=partial(_slices, gamma=gamma),
            span_x=HEIGHTS,
            span_y=HEIGHTS,
        )
        for gamma in GAMMAS
    ),
    Chart(title="Fig. 9: learned equilibria and h", x="x", y="z*", marks=[_along, H]),
    Chart(title="slope at the equilibrium", x="x", y="|df/dz|", marks=SLOPES, log_y=True),
]
