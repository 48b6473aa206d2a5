"""The gradient by every adjoint, beside the exact one in float64, at spectral radii of the Jacobian
from 0.5 to 0.95.

Relative tolerance 1e-4, forward and backward, float32; medians of at most 7 rounds.
"""

import functools

from equilibria.run import plugins
from equilibria.run.bench import methods
from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Study
from equilibria.run.studies.views import Derived, Pivot, of
from papers.bench.common import PEERS, dots, points, scientific, steps, with_own

RTOL = 1e-4
CASES = {f"radius-{r}": {"radius": r, "width": 128, "batch": 32} for r in (0.5, 0.8, 0.9, 0.95)}


def gradients(data: Data) -> Frame:
    rows = steps(data, RTOL)
    return rows.assign(at=rows["radius"].map("radius {:.2g}".format))


across = functools.partial(Pivot, each="method", index={"method": "gradient"}, across="at")
VIEWS = [
    across(
        title="Gradients: relative error",
        values={"{level}": scientific("error")},
        note="Against the exact gradient, all parameters and the input together, computed in "
        "float64.",
    ),
    across(title="Gradients: cosine with the exact one", values={"{level}": "cosine"}),
    across(title="Gradients: milliseconds of a backward", values={"{level}": "backward_ms"}),
    Pivot(
        title="Gradients: all figures",
        each="method",
        index={"problem": "problem", "method": "gradient"},
        values={
            "cosine": "cosine",
            "relative error": scientific("error"),
            "products, mean": "products",
            "max": "products_max",
            "backward, ms": "backward_ms",
            "step, ms": "ms",
            "bytes/state": "states",
            "": "said",
        },
        note="bytes/state: peak of forward and backward less the gradients themselves, in "
        "states. products: vector-Jacobian products; a dash where the method counts none.",
    ),
    Pivot(
        title="Gradients: the problems",
        index={"problem": "problem"},
        values={"spectral radius": "radius", "smallest singular value of I - J": "smallest"},
        note="The Jacobian J at the solution, the largest radius and the smallest singular "
        "value over the samples; the latter divides the tolerances in the bound on the error.",
    ),
    *(
        dots(
            {"x": column, "y": "rank", "by": ["problem"], "label": label},
            title=title,
            x="",
            names="method",
            log_x=True,
        )
        for column, title, label in (
            ("error", "relative error", None),
            ("backward_ms", "backward, ms", ""),
            ("states", "peak, in states", ""),
        )
    ),
]

STUDY = Study(
    title="Gradients",
    points=lambda scale: points(CASES, methods.adjoints, rtol=RTOL, rounds=7),
    peers=PEERS,
    views=[Derived(gradients, view) for view in VIEWS],
    own=lambda path: with_own(
        *(STUDY, path, plugins.BASES, {"method": "Implicit(Fallback)"}, gradients),
        figures={
            "error": functools.partial(of, "error", spec="{:.1e}"),
            "backward, ms": functools.partial(of, "backward_ms"),
        },
    ),
)
