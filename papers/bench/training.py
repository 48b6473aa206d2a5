"""A training step, forward and backward with an exact gradient, beside every exact setting of
torchdeq.

float32; medians of at most 11 rounds. Dense layers, named by width and batch, are solved to a
relative tolerance of 1e-3, forward and backward. On the others each setting has the loosest
tolerance by which the gradient's relative error is at most 1e-3.
"""

from typing import Any

import pandas as pd

from equilibria.run.bench import methods
from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Point, Scale, Study
from equilibria.run.studies.views import Derived, Pivot, smallest
from papers.bench import common
from papers.bench.cells import LAYERS

RTOL = BOUND = 1e-3
# Spectral radius 0.85 to 0.9, the worst sample's: a narrow layer's samples differ more, and so its
# weights are smaller.
CASES = {
    f"{width}x{batch}": {"width": width, "batch": batch, "scale": scale}
    for scale, sizes in (
        (0.9, ((96, 64), (96, 256))),
        (1.0, ((256, 128),)),
        (1.05, ((512, 64), (1024, 64), (2048, 64))),
    )
    for width, batch in sizes
}
EQUAL = {name: {"layer": name} for name in LAYERS}


def points(scale: Scale) -> list[Point]:
    options: dict[str, Any] = {"rtol": RTOL, "rounds": 11, "memory": False}
    return [
        *common.points(CASES, methods.exact, **options),
        *common.points(EQUAL, methods.exact, **options, bound=BOUND),
    ]


def with_means(data: Data) -> Frame:
    """All rows, and for each of our settings the geometric mean and the worst over the problems, of
    those at equal tolerance and of those at equal error."""
    ours = data.rows[data.rows["family"] == "equilibria"].assign(
        at=data.rows["bound"].isna().map({True: "equal tolerance", False: "equal error"})
    )
    blank = {"family": "equilibria", "fastest": "", "best_ms": ""}
    figures = {"geometric mean": common.geometric("speed"), "worst": smallest("speed")}
    means = [
        {"problem": f"{what}, {at}", "method": name, "speed": figure(group), **blank}
        for at, part in ours.groupby("at", sort=False)
        for what, figure in figures.items()
        for name, group in part.groupby("method", sort=False)
    ]
    return pd.concat([data.rows.astype({"best_ms": object}), pd.DataFrame(means)])


MEANS = Pivot(
    title="Training step: times as fast as torchdeq's fastest exact setting",
    index={"problem": "width x batch", "fastest": "torchdeq's fastest", "best_ms": "its ms"},
    each="method",
    where={"family": "equilibria"},
    across="method",
    values={"{level}": "speed"},
    note="Forward and backward. Of torchdeq's 18 exact settings (ift or hook_ift, three solvers "
    "forward, three backward) the fastest on that problem whose gradient is within "
    f"{common.ACCURATE} tolerances of the exact one in float64, or within an error of {BOUND:g} as "
    "all are at equal error. Ours: forward solver, linear solver.",
)
ERRORS = Pivot(
    title="Training step: the default and torchdeq's fastest at equal error",
    index={"problem": "problem"},
    each="method",
    where={"method": "default", "bound": BOUND},
    values={
        "times as fast": "speed",
        "ms": "ms",
        "error": common.scientific("error"),
        "tolerance": common.scientific("rtol"),
        "torchdeq's ms": "best_ms",
        "its error": common.scientific("best_error"),
        "its tolerance": common.scientific("best_rtol"),
    },
    note="Relative errors of the gradient, of all parameters and the input together, against the "
    "exact one in float64.",
)
FIGURES = Pivot(
    title="Training step: all figures",
    index={"problem": "problem", "method": "step"},
    each="method",
    values={
        "ms": "ms",
        "forward": "forward_ms",
        "backward": "backward_ms",
        "x torchdeq's best": "best",
        "gradient's error": common.scientific("error"),
        "tolerance": common.scientific("rtol"),
        "products": "products",
        "": "said",
    },
)
CHART = common.dots(
    {"x": "speed", "y": "place", "by": ["method"], "where": {"family": "equilibria"}},
    title="speed of a training step",
    x="times as fast as torchdeq's fastest exact setting",
    names="problem",
    levels=[("", 1)],
)

STUDY = Study(
    title="Training steps",
    points=points,
    peers=common.PEERS,
    views=[
        Derived(lambda data: common.steps(data, RTOL), view)
        for view in (
            Derived(with_means, MEANS),
            ERRORS,
            Derived(lambda data: data.rows.sort_values(["place", "ms"]), FIGURES),
            CHART,
        )
    ],
)
