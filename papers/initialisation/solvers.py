"""Plain iteration, alternating Anderson, Broyden and Newton on four ensembles."""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from equilibria.run.studies.measures.timing import WORDS, methods
from equilibria.run.studies.results import Frame
from equilibria.run.studies.study import Point, Scale, Study, grid
from equilibria.run.studies.views import Chart, Lines, Pivot, curve, first, mean, median, ratio
from equilibria.theory import critical_scale
from papers.initialisation.common import NAMES, PAPER
from papers.initialisation.wide import SAME, solve

RTOL, EVALS = 1e-4, 100
GRID = grid(activation=("hard-tanh", "tanh"), ensemble=(*PAPER, "antisymmetric"))
SIZES = {"width": 500, "draws": 5, "inputs": 16}
SCALES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)

SHARE = 0.9
"""A scale is workable where so many samples converge, at it and at all smaller ones."""


def points(scale: Scale) -> list[Point]:
    """Each activation and ensemble at all scales, with every solver."""
    measure = partial(solve, solvers=methods(RTOL, EVALS), scales=SCALES, **SIZES)
    return [Point(each, [measure], settings={"same": SAME}, minutes=1.0) for each in GRID]


@cache
def critical(activation: Any, ensemble: Any) -> float:
    """Return the scale at which plain iteration is predicted to stop converging."""
    return critical_scale(activation, ensemble, tolerance=1e-3)


def _predict(rows: Frame) -> float | None:
    factors = rows["activation"].iloc[0], rows["ensemble"].iloc[0]
    return critical(*factors) if rows["done"].all() else None  # seconds each


def largest(rows: Frame) -> float | None:
    """The largest scale up to which `SHARE` of the samples converge; None if not the smallest."""
    works = rows.set_index("scale")["converged"] >= SHARE
    return works.index[works.cummin()].max() if works.iloc[0] else None


def _beyond(figure: Callable[[Frame], Any], rows: Frame) -> Any:
    return figure(rows[rows["scale"] > _predict(rows)])


def _chart(activation: str, ensemble: Any, legend: bool) -> Chart:
    where = {"activation": activation, "ensemble": ensemble}
    label = "sqrt(V*) predicted" if legend else ""
    return Chart(
        title=f"{activation}, {NAMES[ensemble]}",
        x="sqrt(V)",
        y="converged, %",
        marks=[
            converged(where=where, label=WORDS if legend else ""),
            curve(label, (0, 100), float, lambda _: critical(activation, ensemble)),
        ],
        span_y=(-5, 105),
    )


converged = partial(Lines, x="scale", y="converged", by=("solver",), scale=100, style="marked")
INDEX = {"activation": "activation", "ensemble": "ensemble"}
WORDING = {"ensemble": NAMES, "solver": WORDS, "predicted": _predict}
table = partial(Pivot, each="scale", words=WORDING)

STUDY = Study(
    item="open question of section 5",
    title="Solvers other than plain iteration",
    note=f"z = phi(W z) + x, N = {SIZES['width']}, float32, {SIZES['draws']} draws of W x "
    f"{SIZES['inputs']} standard Gaussian inputs, from z = 0; converged: relative residual "
    f"{RTOL:g} within {EVALS} evaluations.",
    points=points,
    views=[
        table(
            title=f"Largest scale up to which {100 * SHARE:.0f} % converge",
            index={**INDEX, "predicted": "sqrt(V*) predicted"},
            across="solver",
            values={"{level}: sqrt(V)": largest, "{level}: ratio": ratio(largest, _predict)},
            note=f"Scales that were tried: {', '.join(f'{s:g}' for s in SCALES)}. The prediction "
            "is of plain iteration in the limit of many units and evaluations. An evaluation of "
            "Newton-Krylov is one of f; its Jacobian products are counted as well.",
        ),
        table(
            title="At the scales above the predicted one",
            index=INDEX,
            across="solver",
            values={
                "{level}: converged, %": partial(_beyond, mean("converged", 100)),
                "{level}: radius at z*": partial(_beyond, median("radius")),
            },
            note="Mean of the shares at these scales, median of the radii of what was found: "
            "above 1, the fixed point exists and plain iteration leaves it.",
        ),
        table(
            title="What is found, whether it is stable, and whether it is unique",
            index={**INDEX, "scale": "sqrt(V)", "solver": "solver"},
            values={
                "converged, %": first("converged", 100),
                "median evaluations": "evals",
                "median residual": "residual",
                "radius at z*": "radius",
                "unstable, %": first("unstable", 100),
                "converged from both starts, %": first("both", 100),
                "of them to one solution, %": first("same", 100),
            },
            note="The radius of the Jacobian (power iteration), the share above 1 and the "
            "evaluations are of the samples that converged. The second start is Gaussian of "
            f"standard deviation 2; one solution: within {SAME:g} of its length.",
        ),
        *(_chart(**each, legend=each is GRID[0]) for each in GRID),
    ],
)
