"""Figure 2, right: the equilibrium solver converges where the unrolled stack oscillates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from equilibria.bench.record import Table
from equilibria.experiments import measure, trainings
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import Experiment, Page, Scale
from equilibria.experiments.published import BAI_2019
from equilibria.experiments.training import load
from equilibria.models import EquilibriumModel
from equilibria.solve import AlternatingAnderson, Broyden, Picard, Solver
from equilibria.tasks.language import LanguageTask

__all__ = ["EXPERIMENT", "cases", "show"]

EVALS = 60
SEGMENTS = 16
SHOWN = (5, 10, 20, 40, 60)
NETWORKS = {"deq": "DEQ-Transformer", "tied": "weight-tied transformer"}
SOLVERS: Mapping[str, Solver] = {
    "unrolling": Picard(),
    "Anderson": AlternatingAnderson(),
    "Broyden": Broyden(),
}
WORDS = {"Anderson": "alternating Anderson (period 3)"}
"""What tables call a solver, where not by the name that results keep it under."""


def cases(scale: Scale) -> Sequence[Case]:
    """Both trainings, and the course of the residual by every solver on each."""
    keys = {
        "deq": trainings.deq_key("transformer", 0),
        "tied": trainings.tied_key("transformer", 0),
    }
    return [
        trainings.language("transformer", scale),
        trainings.language("transformer", scale, deq=False),
        *(
            Case(
                key=network,
                description=f"solves the {words} with {len(SOLVERS)} solvers",
                minutes=1,
                run=_courses(keys[network]),
                settings={
                    "evals": EVALS,
                    "segments": SEGMENTS,
                    "solvers": {name: measure.described(each) for name, each in SOLVERS.items()},
                },
                needs=(keys[network],),
            )
            for network, words in NETWORKS.items()
        ),
    ]


def _courses(key: str) -> Any:
    def run(place: Place) -> Mapping[str, Any]:
        trained = load(place, key)
        task = cast(LanguageTask, trained.data)
        inputs = measure.segments(task, task.config.length, SEGMENTS).inputs
        model = trained.model
        if not isinstance(model, EquilibriumModel):
            model = measure.as_equilibrium(trained)
        return {
            name: measure.course(model, inputs, solver, EVALS) for name, solver in SOLVERS.items()
        }

    return run


def show(done: Results) -> Page:
    """The residual against evaluations, a line for each solver."""
    rows: list[list[Any]] = []
    panels: list[Panel] = []
    for network, words in NETWORKS.items():
        found = done.get(network)
        series: list[Series] = []
        for solver in SOLVERS:
            label = WORDS.get(solver, solver)
            if found is None:
                rows.append([words, label, *[None] * len(SHOWN)])
                continue
            line = found.value[solver]
            evals = list(range(1, len(line["median"]) + 1))
            rows.append([words, label, *(line["median"][at - 1] for at in SHOWN)])
            series.append(
                Series(
                    label=label,
                    x=evals,
                    y=line["median"],
                    low=line["low"],
                    high=line["high"],
                )
            )
        panels.append(
            Panel(title=words, x="evaluations", y="relative residual", series=series, log_y=True)
        )
    table = Table(
        title="Relative residual of test segments, median",
        columns=["network", "solver", *(f"after {at}" for at in SHOWN)],
        rows=rows,
        note=f"{SEGMENTS} segments of Penn Treebank, trained networks; unrolling applies the layer "
        "again and again, the stack as it was trained. The residual is that of each evaluated "
        "state, not the best so far. The paper's figure shows the stack oscillating and the "
        "equilibrium solver converging; its values are not printed.",
    )
    return Page([table], panels)


EXPERIMENT = Experiment(
    name="deq/solvers",
    paper=BAI_2019,
    subject="Figure 2, right",
    description="The equilibrium solver converges where unrolling the layer oscillates.",
    cases=cases,
    show=show,
)
