"""Plain iteration fails there; Broyden and Newton find the fixed point."""

from functools import partial

import torch

from equilibria.run.report.panel import Series
from equilibria.run.studies.measures.timing import WORDS, methods
from equilibria.run.studies.results import Data
from equilibria.run.studies.study import Point, Study, grid
from equilibria.run.studies.views import Bars, Chart, Lines, Pivot, first
from papers.jacobian.maps import CURVES, Curve, linear, scalar, zigzag

RTOL, EVALS = 1e-6, 200
SOLVERS = methods(RTOL, EVALS)
MAPS, SIZES, RADII = 16, (2, 5, 10), (0.5, 0.9, 1.1, 2.0)
SIGHT = (-2.0, 3.0)


def _graph(data: Data, *, curve: Curve) -> list[Series]:
    """The curve, the diagonal, and between them 14 evaluations of plain iteration."""
    path = data.series("evaluation", slope=curve.slope, solver="plain")
    if path.empty:
        return []
    z = torch.linspace(*SIGHT, 121, dtype=torch.float64)
    return [
        Series(label="f", x=z.tolist(), y=curve(z).tolist(), color=0),
        Series(label="f = z", x=SIGHT, y=SIGHT, color=7),
        zigzag(path["z"][:14], reach=10, label="plain iteration", color=1),
    ]


STUDY = Study(
    item="Figure 4",
    title="A slope above one",
    points=lambda scale: [
        *(
            Point({"slope": slope}, [partial(scalar, curve=curve, solvers=SOLVERS)])
            for slope, curve in CURVES.items()
        ),
        *(
            Point(map_, [partial(linear, count=MAPS, solvers=SOLVERS)])
            for map_ in grid(dimensions=SIZES, radius=RADII)
        ),
    ],
    views=[
        Pivot(
            title="Figure 4: a scalar map, slope below and above one",
            index={"slope": "slope at z*", "solver": "solver"},
            each="error",
            where={"slope": list(CURVES)},
            values={
                "ended": "status",
                "evaluations": "evals",
                "residual": "residual",
                "|z - z*|": "error",
            },
            words={"solver": WORDS},
            note=f"To {RTOL:g}, at most {EVALS} evaluations, in float64; the state returned is the "
            "best that was evaluated. Each map has a single fixed point.",
        ),
        Pivot(
            title=f"More dimensions: {MAPS} linear maps each",
            index={"dimensions": "dimensions", "radius": "spectral radius"},
            each="error",
            across="solver",
            where={"dimensions": SIZES},
            values={
                "{level}: converged, %": first("converged", 100),
                "{level}: evaluations": "evals",
            },
            words={"solver": WORDS},
            note="z -> A z + b, A random and symmetric, its eigenvalue of largest modulus "
            f"negative; to {RTOL:g}, at most {EVALS} evaluations, medians over the maps.",
        ),
        *(
            Chart(
                title=f"Fig. 4: slope {slope:g}, plain iteration {curve.words}",
                x="z",
                y="f(z)",
                marks=[
                    partial(_graph, curve=curve),
                    Lines(
                        "z",
                        "f",
                        where={"slope": slope, "solver": "broyden"},
                        merge=None,
                        label="Broyden",
                        colors=2,
                        style="marked",
                    ),
                ],
                span_x=SIGHT,
                span_y=SIGHT,
            )
            for slope, curve in CURVES.items()
        ),
        Chart(
            title="Broyden (solid), plain iteration (dashed)",
            x="evaluations",
            y="|f(z) - z|",
            marks=[
                Lines(
                    "evaluation",
                    "gap",
                    by=("slope",),
                    where={"solver": "broyden"},
                    label="slope {:g}".format,
                ),
                Lines(
                    "evaluation",
                    "gap",
                    by=("slope",),
                    where={"solver": "plain"},
                    label="",
                    style="dashed",
                ),
            ],
            log_y=True,
            whole_x=True,
            span_y=(1e-9, 1e3),
        ),
        Bars(
            at="radius",
            places=RADII,
            y="converged",
            by="solver",
            label=WORDS,
            scale=100,
            where={"dimensions": SIZES},
        ).chart(
            f"linear maps of {', '.join(map(str, SIZES))} dimensions",
            "spectral radius",
            "solved, %",
            names=[f"{radius:g}" for radius in RADII],
            span_y=(0, 135),
        ),
    ],
)
