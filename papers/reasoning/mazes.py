"""Ways through mazes of up to 33 x 33 cells, learned on 9 x 9.

Spanning trees by depth-first search and by Wilson's walks, in turn; a maze counts as solved where
every cell of the way is marked and no other. 250 new mazes of each size. Baselines are trained
for at least as many steps, and at least as many evaluations of the cell. Tied ones are iterated as
long as suits them best, chosen on half of the mazes and reported on the other.
"""

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from equilibria.nn.using import in_eval_mode
from equilibria.run.depth import correlate_ranks
from equilibria.run.studies.study import Context, Point, Scale, Study
from equilibria.run.studies.views import Pivot, spread
from equilibria.solve import SolveWarning
from papers.reasoning.common import (
    EQUILIBRIUM,
    breadth_views,
    by_size,
    choose_measures,
    depth_views,
    measure_breadth,
    measure_path,
    point,
    size_chart,
)

SIZES = (9, 13, 17, 33)
NETWORKS = {EQUILIBRIUM: 3, "tied, 8 deep": 1, "tied, progressive": 1}
"""The networks and their numbers of seeds."""


def measure_larger(context: Context) -> Iterable[dict[str, Any]]:
    """What the answers on mazes of 13 x 13 owe to depth; and the rank correlation of evaluations
    and the length of the way, `by_length`."""
    yield from measure_path(context, "test-13")
    model: Any = context.run.load().model
    batch = context.run.task.sample("test-13", 250)
    with in_eval_mode(model), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)
        evals = model.deq(*model.inject(batch.inputs)).stats.evals
    length = batch.targets.flatten(1).sum(1)
    yield {
        "of": "length",
        "size": 13,
        "by_length": correlate_ranks(length.tolist(), evals.tolist()),
    }


def points(scale: Scale) -> list[Point]:
    return [
        point(
            "mazes", network, seed, choose_measures(network, measure_larger, measure_breadth), 12.0
        )
        for network, seeds in NETWORKS.items()
        for seed in range(seeds)
    ]


STUDY = Study(
    title="Mazes",
    points=points,
    views=[
        size_chart("Mazes solved, learned on 9 x 9", "rows"),
        by_size("Mazes solved, per cent, by rows", SIZES),
        *depth_views("mazes of 13 x 13"),
        Pivot(
            title="Rank correlation of evaluations and the length of the way, mazes of 13 x 13",
            index={"network": "network"},
            where={"of": "length"},
            values={"correlation": spread("by_length", 1, ".2f")},
        ),
        *breadth_views(),
    ],
)
