"""Memory and time of a training step of RAFT and DEQ-RAFT.

The networks of flow/pairs, new, on a batch of their recipe: untrained, their solves take all
evaluations that they may. Published: less than a quarter of the memory.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from equilibria.run.studies.results import Data
from equilibria.run.studies.study import Point, Study
from equilibria.run.studies.views import NOT_RUN, Table
from papers.flow.common import RAFT, THESIS, bytes_of_refinement, times_of_steps, training_of

MIB = 2**20
NAMES = (RAFT, THESIS, "DEQ-RAFT, recipe of Chairs")
WHAT = {"memory": bytes_of_refinement, "time": times_of_steps}


def _rows(data: Data) -> Iterable[Sequence[Any]]:
    taken, timed = data.series("bytes"), data.series("step_ms")
    for name in NAMES:
        cells: list[Any] = [name]
        for found, key, value, unit in (
            (taken, "refined", "bytes", MIB),
            (timed, "timed", "step_ms", 1),
        ):
            if found.empty:
                cells += [NOT_RUN, None]
                continue
            figures = found.set_index(key)[value]
            cells += [figures[name] / unit, figures[name] / figures[RAFT]]
        yield cells


STUDY = Study(
    item="Figure 7.4",
    title="Cost of optical flow at equilibrium",
    points=lambda scale: [
        Point(
            {"cost": cost, "networks": "; ".join(NAMES)},
            [measure],
            reads=[training_of(name, 0, scale).recipe for name in NAMES],
            minutes=3,
        )
        for cost, measure in WHAT.items()
    ],
    views=[
        Table(
            title="Training step",
            columns=[
                *("network", "refinement, MiB", "times RAFT's"),
                *("whole step, ms", "times RAFT's"),
            ],
            rows=_rows,
            note="Refinement: the peak of forward and backward beyond encoders, correlation and "
            "images, less parameters and gradients, float32, the solver's history included. "
            "Medians, interleaved in one process.",
        )
    ],
)
