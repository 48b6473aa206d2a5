"""Training steps with an exact gradient, beside every exact setting of torchdeq."""

from __future__ import annotations

import functools

import pandas as pd

from equilibria.bench import methods
from equilibria.bench.cells import WIDTHS
from equilibria.experiments.data import Data, Frame
from equilibria.experiments.studies.bench._gradients import ACCURATE, compared, points
from equilibria.experiments.studies.bench._tables import PEERS, dots, geometric, pivot, scientific
from equilibria.experiments.study import Study

__all__ = ["STUDY"]

RTOL = 1e-3
steps = functools.partial(compared, rtol=RTOL)


def with_means(data: Data) -> Frame:
    """All rows, and the geometric mean over the problems of each of our settings."""
    rows = steps(data)
    means = [
        {"method": name, "family": "equilibria", "speed": geometric("speed")(group)}
        for name, group in rows.groupby("method", sort=False)
        if (group["family"] == "equilibria").all()
    ]
    blank = {"problem": "geometric mean", "fastest": "", "best_ms": ""}
    return pd.concat([rows.astype({"best_ms": object}), pd.DataFrame(means).assign(**blank)])


STUDY = Study(
    title="Training steps",
    description="A training step, forward and backward with an exact gradient, beside every exact "
    "setting of torchdeq.",
    note="Relative tolerance 1e-3, forward and backward, float32; medians of at most 11 rounds.",
    points=lambda scale: points(WIDTHS, methods.exact, rtol=RTOL, rounds=11, memory=False),
    peers=PEERS,
    views=[
        pivot(
            with_means,
            title="Training step: times as fast as torchdeq's fastest exact setting",
            index={
                "problem": "width x batch",
                "fastest": "torchdeq's fastest",
                "best_ms": "its ms",
            },
            each="method",
            where={"family": "equilibria"},
            across="method",
            values={"{level}": "speed"},
            note="Forward and backward. Of torchdeq's 18 exact settings (ift or hook_ift, three "
            "solvers forward, three backward) the fastest on that problem whose gradient is within "
            f"{ACCURATE} tolerances of the exact one in float64. Ours: forward solver, linear "
            "solver.",
        ),
        pivot(
            lambda data: steps(data).sort_values(["place", "ms"]),
            title="Training step: all figures",
            index={"problem": "problem", "method": "step"},
            each="method",
            values={
                "ms": "ms",
                "forward": "forward_ms",
                "backward": "backward_ms",
                "x torchdeq's best": "best",
                "gradient's error": scientific("error"),
                "products": "products",
                "": "said",
            },
        ),
        dots(
            steps,
            {"x": "speed", "y": "place", "by": ["method"], "where": {"family": "equilibria"}},
            title="speed of a training step",
            x="times as fast as torchdeq's fastest exact setting",
            names="problem",
            level=1,
        ),
    ],
)
