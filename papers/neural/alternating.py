"""Evaluations and accuracy of training with a learned solver.

The MDEQ of jacobian/tables without the penalty. Alternating: with the recipe key neural, a solver
is trained every 150 steps, and used if it beats the best classical one on a held-out batch. The
thesis reports that training is 16 to 20 % faster.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from equilibria.run.alternating import Alternating
from equilibria.run.studies.identity import identified_as
from equilibria.run.studies.measures.epochs import epochs, summary
from equilibria.run.studies.study import Context, Point, Scale, Study
from equilibria.run.studies.training import Training
from equilibria.run.studies.views import Lines, Pivot, last, mean, number, spread
from papers.neural.common import MDEQ, SEEDS, training_of

NETWORKS = {"classical": None, "alternating": Alternating(every=150)}


@identified_as("alternating.learning")
def read_learning(context: Context) -> Iterable[dict[str, Any]]:
    """After each `epoch`, whether the learned solver is used, and the seconds of training it."""
    for record in context.run.metrics:
        if (found := record.get("neural")) is not None:
            used = found.get("used")
            yield {
                "learned_epoch": record["epoch"],
                "used": None if used is None else int(used),
                "learning_seconds": found["seconds"],
            }


@identified_as("alternating.spent")
def average_costs(context: Context) -> dict[str, Any]:
    """`mean_forward`, the mean evaluations per training solve, and `learning_share`, the fraction
    of time spent on training the solver."""
    means = [
        (record["train"]["forward"] or {}).get("evals", {}).get("mean")
        for record in context.run.metrics
    ]
    known = [each for each in means if each is not None]
    learned = [each.get("neural", {}).get("seconds", 0.0) for each in context.run.metrics]
    return {
        "mean_forward": sum(known) / len(known) if known else None,
        "learning_share": sum(learned) / context.run.seconds,
    }


def _training(name: str, scale: Scale, seed: int) -> Training:
    found = training_of(MDEQ, scale, seed)
    config = NETWORKS[name]
    return found if config is None else replace(found, recipe=replace(found.recipe, neural=config))


STUDY = Study(
    item="Figure 6.6b",
    title="A solver learned alongside the model",
    points=lambda scale: [
        Point(
            {"training": name, "seed": seed},
            [summary, average_costs, epochs, read_learning],
            {"run": _training(name, scale, seed)},
        )
        for seed in SEEDS[MDEQ]
        for name in NETWORKS
    ],
    views=[
        Pivot(
            title="Figure 6.6b",
            index={"training": "training solver"},
            values={
                "seeds": number("accuracy"),
                "test accuracy, %": spread("accuracy", 100, ".2f"),
                "evaluations per solve, all epochs": mean("mean_forward"),
                "training, min": mean("seconds", 1 / 60),
                "spent on the solver, %": mean("learning_share", 100),
            },
        ),
        Pivot(
            title="Evaluations per training solve, by epoch",
            index={"training": "training solver", "epoch": "epoch"},
            each="epoch",
            values={"evaluations": mean("forward"), "validation accuracy": last("valid_accuracy")},
        ),
        Lines("epoch", "forward", by=["training"], band=True).chart(
            "Evaluations of a training solve", "epoch", "evaluations", whole_x=True
        ),
    ],
)
