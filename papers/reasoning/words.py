"""Products of up to 256 permutations, learned on words of 16 letters.

S3 has six elements and is solvable; S5 has 120 and is not: no formula of fixed depth computes its
products, whatever its width. 250 new words of each length. S5 is trained three times as long, and
shown for what it fails at. Baselines are trained for at least as many steps, and at least as many
evaluations of the cell. Tied ones are iterated as long as suits them best, chosen on half of the
words and reported on the other.
"""

from collections.abc import Iterable
from typing import Any

from equilibria.run.studies.study import Context, Point, Scale, Study
from papers.reasoning.common import (
    EQUILIBRIUM,
    by_size,
    choose_measures,
    depth_views,
    measure_path,
    measure_sizes,
    point,
    size_chart,
)

LENGTHS = (16, 32, 64, 128, 256)
NETWORKS = {EQUILIBRIUM: 3, "tied, 8 deep": 3, "tied, progressive": 1, "LSTM": 1}
"""The networks and their numbers of seeds."""

S5 = ("--task.group", "S5", "--task.larger", "[32, 64]", "--epochs", "30")


def measure_long(context: Context) -> Iterable[dict[str, Any]]:
    """What the answers on words of 64 letters owe to depth."""
    return measure_path(context, "test-64")


def points(scale: Scale) -> list[Point]:
    return [
        *(
            point(
                "words-s3", network, seed, choose_measures(network, measure_long), 8.0, group="S3"
            )
            for network, seeds in NETWORKS.items()
            for seed in range(seeds)
        ),
        point("words-s3", EQUILIBRIUM, 0, [measure_sizes], 40.0, S5, group="S5"),
    ]


STUDY = Study(
    title="Words over a group",
    points=points,
    views=[
        size_chart("Exact words over S3, learned on 16 letters", "letters", group="S3"),
        by_size("Exact words, per cent, by number of letters", LENGTHS, lead="group"),
        *depth_views("words over S3 of 64 letters"),
    ],
)
