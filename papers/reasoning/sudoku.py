"""Sudoku of 6 digits, and of 4, on grids of which no symmetric copy was seen in training.

A puzzle has one solution, and counts as solved where all of it is right. 500 puzzles. Of 6 digits
16 of the 49 classes of grids are held out, of 4 digits one of two. Baselines are trained for at
least as many steps, and at least as many evaluations of the cell. Tied ones are iterated as long as
suits them best, chosen on half of the puzzles and reported on the other. Sudoku of 4 digits stands
beside it as the easy case, where a fixed depth of 8 may be enough.
"""

from equilibria.run.studies.study import Point, Scale, Study
from papers.reasoning.common import (
    EQUILIBRIUM,
    breadth_views,
    by_size,
    choose_measures,
    depth_views,
    measure_breadth,
    measure_path,
    point,
)

NETWORKS = {EQUILIBRIUM: 3, "tied, 8 deep": 1, "tied, progressive": 1}
"""The networks and their numbers of seeds."""

FOUR = ("--task.size", "4", "--task.clues", "4", "--task.puzzles", "500")


def points(scale: Scale) -> list[Point]:
    return [
        *(
            point(
                "sudoku",
                network,
                seed,
                choose_measures(network, measure_path, measure_breadth),
                12.0,
                digits=6,
            )
            for network, seeds in NETWORKS.items()
            for seed in range(seeds)
        ),
        *(
            point(
                "sudoku",
                network,
                0,
                choose_measures(network, measure_path, measure_breadth),
                8.0,
                FOUR,
                digits=4,
            )
            for network in (EQUILIBRIUM, "tied, 8 deep")
        ),
    ]


STUDY = Study(
    title="Sudoku",
    points=points,
    views=[
        by_size("Puzzles solved, per cent, by digits", (6, 4), lead="digits"),
        *depth_views("6 digits"),
        *breadth_views(),
    ],
)
