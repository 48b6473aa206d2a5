"""Test perplexity against the tolerance and the limit of a solve."""

from functools import partial

from equilibria.run.studies.study import Point, Study
from equilibria.run.studies.views import Lines, Pivot, first
from papers.deq.common import language
from papers.measures.sequences import read_text

TOLERANCES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
LIMITS = (1, 2, 3, 5, 8, 12, 20, 30)
ENOUGH = 200
GRID = [(rtol, ENOUGH) for rtol in TOLERANCES] + [(TOLERANCES[-1], limit) for limit in LIMITS]

STUDY = Study(
    item="Figure 3",
    title="Perplexity against the precision of solves",
    points=lambda scale: [
        Point(
            {"rtol": rtol, "max_evals": limit},
            [partial(read_text, rtol=rtol, max_evals=limit, patience=None)],
            {"deq": language("transformer", scale)},
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
        Lines("rtol", "perplexity", where={"max_evals": ENOUGH}, style="marked").chart(
            "perplexity against the tolerance",
            "relative tolerance",
            "test perplexity",
            log_x=True,
            log_y=True,
        ),
        Lines("max_evals", "perplexity", where={"max_evals": LIMITS}, style="marked").chart(
            "perplexity against the limit",
            "evaluations, limit",
            "test perplexity",
            log_y=True,
            whole_x=True,
        ),
    ],
)
