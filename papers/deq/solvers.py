"""The equilibrium solver converges where unrolling the layer oscillates."""

from dataclasses import replace
from functools import partial
from typing import Any, cast

from equilibria.run.studies.measures.timing import WORDS, methods
from equilibria.run.studies.study import Point, Study
from equilibria.run.studies.views import Lines, Pivot, of
from papers.deq.common import language
from papers.measures.sequences import residuals

EVALS = (5, 10, 20, 40, 60)
SEGMENTS = 16
NETWORKS = {"deq": "DEQ-Transformer", "tied": "weight-tied transformer"}
NAMES = {**WORDS, "plain": "unrolling"}
SOLVERS = {
    name: replace(cast(Any, solver), patience=None)
    for name, solver in methods(0.0, EVALS[-1]).items()
    if name != "newton"
}

STUDY = Study(
    item="Figure 2, right",
    title="Solvers on trained networks",
    points=lambda scale: [
        Point(
            {"network": network},
            [partial(residuals, solvers=SOLVERS, count=SEGMENTS)],
            {network: language("transformer", scale, tied=network == "tied")},
            minutes=1,
        )
        for network in NETWORKS
    ],
    views=[
        Pivot(
            title="Relative residual of test segments, median",
            index={"network": "network", "solver": "solver"},
            whole=True,
            words={"network": NETWORKS, "solver": NAMES},
            values={f"after {evals}": of("median", evals=evals) for evals in EVALS},
            note=f"{SEGMENTS} segments of Penn Treebank, trained networks; unrolling applies the "
            "layer again and again, the stack as it was trained. The residual is that of each "
            "evaluated state, not the best so far. The paper's figure shows the stack oscillating "
            "and the equilibrium solver converging; its values are not printed.",
        ),
        *(
            Lines(
                "evals",
                "median",
                low="low",
                high="high",
                by=["solver"],
                where={"network": network},
                label=NAMES,
            ).chart(name, "evaluations", "relative residual", log_y=True)
            for network, name in NETWORKS.items()
        ),
    ],
)
