"""Appendix E: how unequal the evaluations within a batch are, with dropout and weight norm."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from equilibria.bench.record import Table
from equilibria.experiments import measure, variants
from equilibria.experiments.case import Case, Place, Results
from equilibria.experiments.draw import Panel, Series
from equilibria.experiments.experiment import Experiment, Page, Scale
from equilibria.experiments.published import BAI_2019
from equilibria.experiments.training import load
from equilibria.models import EquilibriumModel
from equilibria.solve import Solver
from equilibria.tasks.language import LanguageTask

__all__ = ["EXPERIMENT", "cases", "show"]

TRAINED = ("dropout", "dropout-unnormalised")
DROPOUT = {"off": False, "on": True}
TOLERANCE = 1e-3
ENOUGH = 200
BATCHES = 8


def cases(scale: Scale) -> Sequence[Case]:
    """Short trainings with dropout, with and without weight norm; batches solved by each."""
    return [
        *(variants.case(name, scale) for name in TRAINED),
        *(
            Case(
                key=name,
                description=f"counts evaluations sample by sample: {variants.VARIANTS[name].words}",
                minutes=1,
                run=_counted(name),
                settings={"rtol": TOLERANCE, "max_evals": ENOUGH, "batches": BATCHES},
                needs=(variants.key(name),),
            )
            for name in TRAINED
        ),
    ]


def _counted(name: str) -> Any:
    def run(place: Place) -> Mapping[str, Any]:
        trained = load(place, variants.key(name))
        task = cast(LanguageTask, trained.data)
        size = trained.recipe.batch_size
        model = cast(EquilibriumModel, trained.model)
        solver = cast(
            Solver,
            dataclasses.replace(
                cast(Any, model.deq.solver), rtol=TOLERANCE, max_evals=ENOUGH, patience=None
            ),
        )
        inputs = measure.segments(task, task.config.length, BATCHES * size).inputs
        result: dict[str, Any] = {}
        for words, dropout in DROPOUT.items():
            torch.manual_seed(0)  # of the dropout masks
            counts = [
                measure.solved(model, batch, solver, dropout=dropout).stats.evals
                for batch in inputs.split(size)
            ]
            result[words] = {
                "evals": [batch.tolist() for batch in counts],
                "batches": [measure.spread(batch) for batch in counts],
            }
        return result

    return run


def show(done: Results) -> Page:
    """Mean, spread and slowest of a batch, and how the evaluations are distributed."""
    rows: list[list[Any]] = []
    series: list[Series] = []
    for name in TRAINED:
        norm = "with" if variants.VARIANTS[name].model.get("weight_norm", True) else "without"
        for words in DROPOUT:
            found = done.get(name)
            if found is None:
                rows.append([norm, words, *[None] * 5])
                continue
            value = found.value[words]
            means = [
                statistics.fmean(batch[figure] for batch in value["batches"])
                for figure in ("mean", "deviation", "least", "most", "waiting")
            ]
            rows.append([norm, words, *means[:4], 100 * means[4]])
            counts = sorted(count for batch in value["evals"] for count in batch)
            shares = [(place + 1) / len(counts) for place in range(len(counts))]
            style = "dashed" if words == "on" else "line"
            series.append(
                Series(
                    label=f"{norm} weight norm, dropout {words}",
                    x=counts,
                    y=shares,
                    colour=TRAINED.index(name),
                    style=style,
                )
            )
    table = Table(
        title="Evaluations of the samples of a batch, means over batches",
        columns=[
            *("weight norm", "dropout", "mean", "standard deviation", "fewest", "most"),
            "waiting, %",
        ],
        rows=rows,
        note=f"Test segments of Penn Treebank, each at a beginning, solved to {TOLERANCE:g} with "
        f"{ENOUGH} evaluations allowed, by networks trained shortly with dropout .1; off: without "
        "its masks. Waiting: share of a batch's evaluations spent on samples that have converged, "
        "1 - mean / most, where none leaves the batch. The paper finds the imbalance small, "
        "dropout to slow solves and weight norm to stabilise them, and prints no figures.",
    )
    panel = Panel(
        title="share of samples that have converged",
        x="evaluations",
        y="share",
        series=series,
        zero=True,
    )
    return Page([table], [panel])


EXPERIMENT = Experiment(
    name="deq/imbalance",
    paper=BAI_2019,
    subject="Appendix E",
    description="Unequal evaluations within a batch, with and without dropout and weight norm.",
    cases=cases,
    show=show,
)
