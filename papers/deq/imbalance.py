"""Unequal evaluations within a batch, with and without dropout and weight norm."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from equilibria.nn import using
from equilibria.run.studies.study import Context, Point, Study, grid
from equilibria.run.studies.views import Chart, Lines, Pivot, mean
from papers.jacobian.common import training_of
from papers.measures.sequences import as_equilibrium, segments

NETWORKS = {"with": "dropout", "without": "dropout-unnormalised"}
"""The variant that was trained with weight norm, and without."""

TOLERANCE, LIMIT, BATCHES = 1e-3, 200, 8


@torch.no_grad()
def evaluations(context: Context) -> Iterator[dict[str, float]]:
    """Evaluations of the samples of batches: what `spread` says of each, then their distribution.

    For each number `evals`, the share `converged` of all samples that took no more.
    """
    run = context.run.load()
    model: Any = as_equilibrium(run).train(context.factors["dropout"] == "on")
    solver = replace(model.deq.solver, rtol=TOLERANCE, max_evals=LIMIT, patience=None)
    size = run.recipe.rows
    inputs = segments(run.data, None, BATCHES * size).inputs
    with using(model, solver=solver):
        solutions = [model.deq(*model.inject(batch)) for batch in inputs.split(size)]
    batches = [each.stats.evals.double() for each in solutions]
    yield from map(spread, batches)
    evals = torch.cat(batches)
    for count in evals.unique():
        yield {"evals": int(count), "converged": float((evals <= count).double().mean())}


def spread(evals: torch.Tensor) -> dict[str, float]:
    """Return how unequal the evaluations (batch,) of the samples of a batch are.

    A batch without compaction waits for its slowest sample: `waiting` is the share of all
    evaluations that are then spent on samples that have converged before, 1 - mean / max.
    """
    average, low, high = float(evals.mean()), float(evals.min()), float(evals.max())
    deviation, waiting = float(evals.std(correction=0)), 1 - average / high
    return {"mean": average, "deviation": deviation, "min": low, "max": high, "waiting": waiting}


STUDY = Study(
    item="Appendix E",
    title="Evaluations within a batch",
    points=lambda scale: [
        Point(
            each,
            [evaluations],
            {"run": training_of(NETWORKS[each["weight_norm"]], scale)},
            settings={"rtol": TOLERANCE, "max_evals": LIMIT, "batches": BATCHES},
            minutes=0.5,
        )
        for each in grid(weight_norm=NETWORKS, dropout=("off", "on"))
    ],
    views=[
        Pivot(
            title="Evaluations of the samples of a batch, means over batches",
            index={"weight_norm": "weight norm", "dropout": "dropout"},
            whole=True,
            values={
                "mean": mean("mean"),
                "standard deviation": mean("deviation"),
                "min": mean("min"),
                "max": mean("max"),
                "waiting, %": mean("waiting", 100),
            },
            note=f"Test segments of Penn Treebank, each at a beginning, solved to {TOLERANCE:g} "
            f"within {LIMIT} evaluations, by networks briefly trained with dropout 0.1; off: "
            "without its masks. Waiting: share of a batch's evaluations spent on samples that have "
            "converged, 1 - mean / max. The paper finds the imbalance small, dropout to slow "
            "solves and weight norm to stabilise them, and prints no figures.",
        ),
        Chart(
            title="share of samples that have converged",
            x="evaluations",
            y="share",
            marks=[
                Lines(
                    "evals",
                    "converged",
                    by=["weight_norm"],
                    where={"dropout": dropout},
                    label=f"{{}} weight norm, dropout {dropout}".format,
                    style="dashed" if dropout == "on" else "line",
                )
                for dropout in ("off", "on")
            ],
            zero=True,
        ),
    ],
)
