"""A training step, forward and backward with an exact gradient, beside every exact setting of
torchdeq.

Relative tolerance 1e-3, forward and backward, float32; medians of at most 11 rounds.
"""

import pandas as pd

from equilibria.run.bench import methods
from equilibria.run.studies.results import Data, Frame
from equilibria.run.studies.study import Study
from equilibria.run.studies.views import Derived, Pivot
from papers.bench import common

RTOL = 1e-3
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


def with_means(data: Data) -> Frame:
    """All rows, and the geometric mean over the problems of each of our settings."""
    ours = data.rows[data.rows["family"] == "equilibria"].groupby("method", sort=False)
    blank = {"problem": "geometric mean", "family": "equilibria", "fastest": "", "best_ms": ""}
    means = [
        {"method": name, "speed": common.geometric("speed")(group), **blank} for name, group in ours
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
    f"{common.ACCURATE} tolerances of the exact one in float64. Ours: forward solver, linear "
    "solver.",
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
    points=lambda scale: common.points(CASES, methods.exact, rtol=RTOL, rounds=11, memory=False),
    peers=common.PEERS,
    views=[
        Derived(lambda data: common.steps(data, RTOL), view)
        for view in (
            Derived(with_means, MEANS),
            Derived(lambda data: data.rows.sort_values(["place", "ms"]), FIGURES),
            CHART,
        )
    ],
)
