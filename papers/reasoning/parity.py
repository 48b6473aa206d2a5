"""Strings of up to 512 bits whose every prefix parity is right, learned on strings of 16.

The cell sees three places, so an answer at place n takes about n evaluations, whoever computes it:
a network of fixed depth answers by chance beyond its reach. 1,000 new strings of each length. Tied
networks are iterated as long as suits them best, chosen on these strings. An LSTM needs no depth
for this: it goes through the string. Training as in the recipe, the others for as many steps.
"""

from collections.abc import Iterable
from typing import Any

from equilibria.run.studies.study import Context, Measure, Point, Scale, Study
from equilibria.run.studies.views import Pivot, spread
from papers.reasoning.common import (
    EQUILIBRIUM,
    NETWORKS,
    TIED,
    by_size,
    depth_views,
    measure_adaptive,
    measure_iterated,
    measure_path,
    measure_sizes,
    measure_solvers,
    point,
    size_chart,
)

LENGTHS = (16, 32, 64, 128, 256, 512)


def measures(network: str) -> list[Measure]:
    """Return what is measured of a network."""
    if network == EQUILIBRIUM:
        return [measure_sizes, measure_solvers, measure_long, measure_adaptive]
    return [measure_iterated if network in TIED else measure_sizes]


def measure_long(context: Context) -> Iterable[dict[str, Any]]:
    """What the answers on strings of 128 bits owe to depth."""
    return measure_path(context, "test-128")


def points(scale: Scale) -> list[Point]:
    return [
        point("parity", network, seed, measures(network), 4.0)
        for network in NETWORKS
        for seed in range(5 if network == EQUILIBRIUM else 3)
    ]


STUDY = Study(
    title="Prefix parity",
    points=points,
    views=[
        size_chart("Exact strings, learned on 16 bits", "bits"),
        by_size("Exact strings, per cent, by length in bits", LENGTHS),
        Pivot(
            title="Solvers, with their limits",
            index={"size": "bits", "solver": "solver"},
            each="solver",
            where={"network": EQUILIBRIUM},
            values={
                "exact, %": spread("exact_here", 100),
                "converged, %": spread("settled", 100),
                "evaluations": spread("evals_here"),
            },
        ),
        *depth_views("strings of 128 bits"),
    ],
)
