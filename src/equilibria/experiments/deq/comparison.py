"""What the equilibrium network is worth against the explicit ones after the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from equilibria.bench.record import Table
from equilibria.experiments import trainings
from equilibria.experiments.case import Done, Results
from equilibria.experiments.deq import quality
from equilibria.experiments.experiment import NOT_RUN

__all__ = ["NAMES", "comparison", "copying", "evaluated", "ratio", "step_bytes"]

NAMES = {"transformer": "Transformer", "trellisnet": "TrellisNet"}


def comparison(done: Results) -> Table:
    """Both networks of a cell after the same tokens: perplexity, convergence, memory, time."""
    rows: list[list[Any]] = []
    for cell, seeds in trainings.SEEDS.items():
        timed = done.get(quality.time_key(cell))
        for seed in seeds:
            key = trainings.deq_key(cell, seed)
            deq, tied = done.get(key), done.get(trainings.tied_key(cell, seed))
            judged = done.get(quality.quality_key(key))
            row = [
                NAMES[cell],
                seed,
                None if deq is None else evaluated(deq.value, "perplexity"),
                None if tied is None else evaluated(tied.value, "perplexity"),
                ratio(done, cell, seed, lambda v: evaluated(v, "perplexity")),
                None if judged is None else 100 * _converged(judged.value["evaluation"]),
                None if judged is None else judged.value["cosine"],
                ratio(done, cell, seed, step_bytes),
                _penalised_share(deq, tied),
                ratio(done, cell, seed, lambda v: v["seconds"]),
                None if timed is None else timed.value["end"]["deq"] / timed.value["end"]["tied"],
            ]
            rows.append([NOT_RUN if cell is None else cell for cell in row])
    return Table(
        title=f"Equilibrium against {trainings.LAYERS} weight-tied layers after the same tokens",
        columns=[
            *("cell", "seed", "perplexity, DEQ", "tied", "ratio"),
            *("converged, %", "adjoint cosine", "memory, ratio", "with the penalty"),
            *("training time, ratio", "of a step, in turns"),
        ],
        rows=rows,
        note=f"Penn Treebank, test text. Converged: share of solves at {quality.TOLERANCE:g}. "
        "Cosine: between the gradient of the recipe's adjoint and the exact one, by the doctor. "
        "Memory with the penalty: of the steps that the Jacobian penalty is drawn for, which hold "
        "a second backward graph. "
        "Aimed at: perplexity ratio at most 1.03, 95 % converged, cosine .99, memory 0.33, time "
        "1.5.",
    )


def copying(done: Results) -> Table:
    """Copy memory, seed by seed: the equilibrium network's loss over the better of the others."""
    rows: list[list[Any]] = []
    for seed in trainings.COPY_SEEDS:
        found = [
            done.get(trainings.copying_key(network, seed))
            for network in ("deq", *trainings.RECURRENT)
        ]
        losses = [NOT_RUN if each is None else evaluated(each.value, "loss") for each in found]
        deq, *others = losses
        known = [loss for loss in others if isinstance(loss, float)]
        compared = isinstance(deq, float) and len(known) == len(others)
        rows.append([seed, *losses, float(deq) / min(known) if compared else NOT_RUN])
    return Table(
        title="Copy memory: equilibrium against recurrent networks of its size",
        columns=["seed", "DEQ", *map(str.upper, trainings.RECURRENT), "DEQ / the better other"],
        rows=rows,
        note="Test loss. Aimed at: at most 0.1 of both.",
    )


def step_bytes(value: Mapping[str, Any]) -> float | None:
    """Bytes of a step as the network trains; of an equilibrium network at its dearest depth."""
    points = [p["bytes"] for p in value["memory"] or () if p["kind"] in ("deq", "explicit")]
    return max(points, default=None)


def _penalised_share(deq: Done | None, tied: Done | None) -> float | str | None:
    """Bytes of a step with the Jacobian penalty over the stack's; "none" where there is none."""
    explicit = None if tied is None else step_bytes(tied.value)
    if deq is None or explicit is None:
        return None
    penalised = deq.value["penalised_bytes"]
    return "none" if penalised is None else penalised / explicit


def ratio(done: Results, cell: str, seed: int, figure: Callable[[Any], Any]) -> float | None:
    """The equilibrium network's figure over the stack's; None where one of them is missing.

    Args:
        done: finished cases.
        cell: of both networks.
        seed: of both trainings.
        figure: read from what a training left.
    """
    deq = done.get(trainings.deq_key(cell, seed))
    tied = done.get(trainings.tied_key(cell, seed))
    if deq is None or tied is None:
        return None
    one, other = figure(deq.value), figure(tied.value)
    return one / other if isinstance(one, int | float) and isinstance(other, int | float) else None


def evaluated(value: Mapping[str, Any], figure: str) -> float | str:
    """A figure on the test set; "diverged" of a training that has."""
    return "diverged" if value["diverged"] else value["evaluation"][figure]


def _converged(evaluation: Mapping[str, Any]) -> float:
    return evaluation["forward"]["status"]["CONVERGED"]
