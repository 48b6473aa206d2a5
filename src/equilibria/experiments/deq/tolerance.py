"""Figure 3: perplexity against the tolerance and against the evaluations that a solve may take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from equilibria.bench.record import Table
from equilibria.experiments import trainings
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import Experiment, Page, Scale
from equilibria.experiments.published import BAI_2019
from equilibria.experiments.training import load
from equilibria.models import EquilibriumModel
from equilibria.solve import Solver
from equilibria.train import evaluation

__all__ = ["EXPERIMENT", "cases", "show"]

TOLERANCES = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001)
LIMITS = (1, 2, 3, 5, 8, 12, 20, 30)
ENOUGH = 200
KEY = trainings.deq_key("transformer", 0)


def cases(scale: Scale) -> Sequence[Case]:
    """The training, then one pass over the test text a setting of the solver."""
    settings = {
        **{f"rtol-{rtol:g}": {"rtol": rtol, "max_evals": ENOUGH} for rtol in TOLERANCES},
        **{f"limit-{limit}": {"rtol": TOLERANCES[-1], "max_evals": limit} for limit in LIMITS},
    }
    return [
        trainings.language("transformer", scale),
        *(
            Case(
                key=key,
                description="reads the test text with solves "
                + (f"to {fields['rtol']:g}" if key.startswith("rtol") else f"stopped at {key[6:]}"),
                minutes=0.5,
                run=_evaluated(fields),
                settings=fields,
                needs=(KEY,),
            )
            for key, fields in settings.items()
        ),
    ]


def _evaluated(fields: Mapping[str, Any]) -> Any:
    def run(place: Place) -> Mapping[str, Any]:
        trained = load(place, KEY)
        accelerator = evaluation.accelerator(trained.recipe.precision)
        model = cast(EquilibriumModel, trained.model.to(accelerator.device))
        solver = cast(
            Solver,
            replace(cast(Any, model.deq.eval_solver or model.deq.solver), patience=None, **fields),
        )
        result, seconds = evaluation.timed(
            model,
            trained.data,
            accelerator,
            batch_size=trained.recipe.eval_batch_size,
            solver=solver,
        )
        return {**result, "seconds": seconds}

    return run


def show(done: Results) -> Page:
    """Perplexity against the tolerance, and against the limit of evaluations."""
    rows: list[list[Any]] = []
    for key, found in done.items():
        if key == KEY:
            continue
        value, (kind, figure) = found.value, key.split("-", 1)
        forward = value["forward"]
        rows.append(
            [
                f"to {figure}" if kind == "rtol" else f"stopped at {figure}",
                value["perplexity"],
                forward["evals"]["mean"],
                100 * forward["status"]["CONVERGED"],
                1e6 * value["seconds"],
            ]
        )

    def line(kind: str, figures: Sequence[float]) -> tuple[list[float], list[Any]]:
        known = [x for x in figures if f"{kind}-{x:g}" in done]
        return known, [done[f"{kind}-{x:g}"].value["perplexity"] for x in known]

    by_tolerance, by_limit = line("rtol", TOLERANCES), line("limit", LIMITS)
    table = Table(
        title="Test perplexity against tolerance and evaluations",
        columns=[
            "solve",
            "perplexity",
            "evaluations, mean",
            "converged, %",
            "microseconds a token",
        ],
        rows=rows,
        note=f"DEQ-Transformer on Penn Treebank, one training at its own tolerance; a solve to a "
        f"tolerance may take {ENOUGH} evaluations, one stopped earlier aims at "
        f"{TOLERANCES[-1]:g}. The paper's figure shows the perplexity diverging where the "
        "tolerance is too large, and 30 evaluations sufficing; its values are not printed.",
    )
    panels = [
        Panel(
            title="perplexity against tolerance",
            x="relative tolerance",
            y="test perplexity",
            series=[Series(label="", x=by_tolerance[0], y=by_tolerance[1], style="marked")],
            log_x=True,
            log_y=True,
        ),
        Panel(
            title="perplexity against the limit",
            x="evaluations at most",
            y="test perplexity",
            series=[Series(label="", x=by_limit[0], y=by_limit[1], style="marked")],
            log_y=True,
            whole_x=True,
        ),
    ]
    return Page([table], panels)


EXPERIMENT = Experiment(
    name="deq/tolerance",
    paper=BAI_2019,
    subject="Figure 3",
    description="Test perplexity against the tolerance and the limit of a solve.",
    cases=cases,
    show=show,
)
