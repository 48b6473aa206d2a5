"""Figure 3: perplexity against the tolerance and against the evaluations that a solve may take."""

from __future__ import annotations

from functools import partial

from equilibria.run.studies.study import Point, Study
from equilibria.run.studies.views import Chart, Lines, Pivot, first
from papers.deq.common import language
from papers.measures.sequences import reading
from papers.published import BAI_2019

TOLERANCES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
LIMITS = (1, 2, 3, 5, 8, 12, 20, 30)
ENOUGH = 200
GRID = [(rtol, ENOUGH) for rtol in TOLERANCES] + [(TOLERANCES[-1], limit) for limit in LIMITS]

STUDY = Study(
    paper=BAI_2019,
    item="Figure 3",
    title="Perplexity against the precision of solves",
    description="Test perplexity against the tolerance and the limit of a solve.",
    points=lambda scale: [
        Point(
            factors={"rtol": rtol, "max_evals": limit},
            measures=[partial(reading, rtol=rtol, max_evals=limit, patience=None)],
            runs={"deq": language("transformer", scale)},
            minutes=0.5,
        )
        for rtol, limit in GRID
    ],
    views=[
        Pivot(
            title="Test perplexity against tolerance and evaluations",
            index={"rtol": "relative tolerance", "max_evals": "evaluations, limit"},
            values={
                "perplexity": "perplexity",
                "evaluations, mean": "evals",
                "converged, %": first("converged", 100),
                "microseconds a token": first("token_seconds", 1e6),
            },
            note="DEQ-Transformer on Penn Treebank, one training at its own tolerance. The paper's "
            "figure shows the perplexity diverging where the tolerance is too large, and 30 "
            "evaluations sufficing; its values are not printed.",
        ),
        Chart(
            title="perplexity against the tolerance",
            x="relative tolerance",
            y="test perplexity",
            marks=Lines(x="rtol", y="perplexity", where={"max_evals": ENOUGH}, style="marked"),
            log_x=True,
            log_y=True,
        ),
        Chart(
            title="perplexity against the limit",
            x="evaluations, limit",
            y="test perplexity",
            marks=Lines(x="max_evals", y="perplexity", where={"max_evals": LIMITS}, style="marked"),
            log_y=True,
            whole_x=True,
        ),
    ],
)
