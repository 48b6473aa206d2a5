"""Views that set each cell's equilibrium network against its weight-tied stack."""

from __future__ import annotations

import statistics
from typing import Any

from equilibria.experiments.data import Frame
from equilibria.experiments.measures.timing import ROUNDS
from equilibria.experiments.published import BAI_2019, published
from equilibria.experiments.studies.deq._trainings import CELLS, LAYERS
from equilibria.experiments.views import NOT_RUN, Cell, Pivot, of, ratio, time_ratio
from equilibria.experiments.views.columns import Column

__all__ = ["COMPARISON", "DEQ", "NAMES", "STACKS", "TIED", "TIMES", "TOLERANCE"]

TOLERANCE = 1e-2
NAMES = {"transformer": "Transformer", "trellisnet": "TrellisNet"}
STACKS = {cell: f"weight-tied {name}, {LAYERS} layers" for cell, name in NAMES.items()}

DEQ, TIED, BOTH = ([f"{kind}-{cell}" for cell in CELLS] for kind in ("deq", "tied", "both"))
"""Levels of the factor `network`; the last is of points that time a pair of them together."""


def _against(column: str, other: str | None = None, **options: Any) -> Column:
    return ratio(of(column, network=DEQ), of(other or column, network=TIED), **options)


def _timed(column: str, other: str = "tied_step", **options: Any) -> Column:
    return ratio(of(column, network=BOTH), of(other, network=BOTH), **options)


_seconds = time_ratio({"network": DEQ}, {"network": TIED})


def _conditions(rows: Frame) -> Cell:
    known = [of("conditions", network=each)(rows) for each in (DEQ, TIED)]
    return None if {None, NOT_RUN} & {*known} else " against ".join(map(str, dict.fromkeys(known)))


def _median_seconds(rows: Frame) -> Cell:
    known = [x for _, seed in rows.groupby("seed") if isinstance(x := _seconds(seed), float)]
    return f"{statistics.median(known):.2f}x" if known else None


COMPARISON = Pivot(
    title=f"Equilibrium against {LAYERS} weight-tied layers after the same tokens",
    index={"cell": "cell", "seed": "seed"},
    where={"data": "ptb"},
    words={"cell": NAMES},
    values={
        "perplexity, DEQ": of("perplexity", network=DEQ),
        "tied": of("perplexity", network=TIED),
        "ratio": _against("perplexity"),
        "pieces a segment": of("pieces", network=DEQ),
        "pieces converged, %": of("pieces_converged", 100, network=DEQ),
        "rows converged, %": of("rows_converged", 100, network=DEQ),
        "adjoint cosine": of("cosine", network=DEQ),
        "memory, ratio": _against("step_bytes"),
        "with the penalty": _against("penalised_bytes", "step_bytes", absent="none"),
        "training time, ratio": _seconds,
        "on": _conditions,
        "a step, interleaved": _timed("deq_step"),
        "plain": _timed("deq_plain"),
        "penalised": _timed("deq_penalised", absent="none"),
    },
    note=f"Test text of Penn Treebank. Converged: share of the solves to {TOLERANCE:g}, one for "
    "each piece of a segment, and of the rows of segments all of whose pieces converge. Cosine: of "
    "the gradient by the recipe's adjoint and the exact one, by the doctor. With the penalty: a "
    "step with the Jacobian penalty holds a second backward graph. Training time: all steps, where "
    "threads and machine are the same. A step, interleaved: as in Table 4, first seed.",
)

TIMES = Pivot(
    title="Table 4: time of the equilibrium network, the explicit one being 1",
    index={"cell": "explicit network"},
    where={"data": "ptb"},
    words={"cell": STACKS},
    values={
        "whose": of("threads", spec="ours, {:g} threads", network=BOTH),
        "a training step": _timed("deq_step", spec="{:.2f}x"),
        "reading": _timed("deq_read", "tied_read", spec="{:.2f}x"),
        "a plain step": _timed("deq_plain", spec="{:.2f}x"),
        "a penalised step": _timed("deq_penalised", spec="{:.2f}x"),
        "a step, untrained": _timed("deq_untrained", "tied_untrained", spec="{:.2f}x"),
        "all steps of the training": _median_seconds,
    },
    above=[
        (row["row"], "paper", f"{row['training']:.2f}x", f"{row['inference']:.2f}x")
        for row in published(BAI_2019, "Table 4")
    ],
    note=f"Ours: medians of {ROUNDS} steps of trained networks, interleaved in one process, with "
    "the Jacobian penalty and without apart; a training step is (1 - p) plain + p penalised, p "
    "being the recipe's share of steps with the penalty. All steps: of the trainings, median over "
    "the seeds that ran on the same machine and threads. The paper's explicit networks are untied; "
    "the thesis of 2022 prints 3.24x and 2.56x for the Transformer.",
)
