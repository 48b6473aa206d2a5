"""Strings of up to 512 bits whose every prefix parity is right, learned on strings of 16.

The cell sees three places, so an answer at place n takes about n evaluations, whoever computes it:
a network of fixed depth answers by chance beyond its reach. 250 new strings of each length. Tied
networks are iterated as long as suits them best, up to the limit of the equilibrium network. That
is chosen on half of the strings and reported on the other. An LSTM needs no depth for this: it goes
through the string. Training as in the recipe, the others for at least as many steps and at least as
many evaluations of the cell.
"""

from collections.abc import Iterable
from typing import Any

from equilibria.run.studies.study import Context, Measure, Point, Scale, Study
from equilibria.run.studies.views import Pivot, mean, spread
from equilibria.zoo.reasoning.data.words import bound_parities
from papers.reasoning.common import (
    EQUILIBRIUM,
    EXACT,
    NETWORKS,
    TIED,
    by_size,
    choose_measures,
    depth_views,
    iterate,
    measure_path,
    measure_solvers,
    point,
    size_chart,
)

LENGTHS = (16, 32, 64, 128, 256, 512)
SEEDS = {EQUILIBRIUM: 5, EXACT: 1, "tied, 16 deep": 1, "untied, 8 deep, as small": 1}
"""Seeds of the networks that do not have three."""


def measures(network: str) -> list[Measure]:
    """Return what is measured of a network."""
    found = choose_measures(network, measure_choices, measure_long, measure_reach)
    return [*found, measure_reach] if network in TIED else found


def measure_choices(context: Context) -> Iterable[dict[str, Any]]:
    """How the default solver does, with its own limit and with a longer one."""
    return measure_solvers(context, (64, 512))


def measure_long(context: Context) -> Iterable[dict[str, Any]]:
    """What the answers on strings of 128 bits owe to depth."""
    return measure_path(context, "test-128")


def measure_reach(context: Context) -> Iterable[dict[str, Any]]:
    """One row for each number `stop` of plain evaluations on strings of 128 bits: `places`, the
    share that is right, and `bound`, the largest that is possible, and three standard errors."""
    run, bits = context.run, 128
    batch = run.task.sample(f"test-{bits}", 1000)
    stops = [2**k for k in range(8)]
    for stop, answer in zip(stops, iterate(run.load().model, batch.inputs, stops), strict=True):
        bound = bound_parities(stop, bits)
        yield {
            "of": "reach",
            "size": bits,
            "stop": stop,
            "places": float((answer.argmax(1) == batch.targets).double().mean()),
            "bound": bound + 3 * (1 - bound) / len(batch.targets) ** 0.5,
        }


def points(scale: Scale) -> list[Point]:
    return [
        point("parity", network, seed, measures(network), 4.0)
        for network in NETWORKS
        for seed in range(SEEDS.get(network, 3))
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
        Pivot(
            title="Right places of 128 after plain evaluations, and the bound for any such cell",
            index={"stop": "evaluations", "network": "network"},
            each="stop",
            where={"of": "reach"},
            values={"right, %": spread("places", 100), "at most, %": mean("bound", 100)},
        ),
        *depth_views("strings of 128 bits"),
    ],
)
