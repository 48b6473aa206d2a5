"""What the equilibrium network is worth against the explicit ones after the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from equilibria.bench.record import Table
from equilibria.experiments import trainings
from equilibria.experiments.case import Done, Results
from equilibria.experiments.deq import quality
from equilibria.experiments.duration import conditions, time_ratio
from equilibria.experiments.experiment import NOT_RUN

__all__ = ["CELLS", "NAMES", "comparison", "copying", "evaluated", "step_bytes", "step_ratio"]

NAMES = {"transformer": "Transformer", "trellisnet": "TrellisNet"}

DIVERGED = "diverged"
"""Stands in a table for what a training whose loss ran away cannot have."""

CELLS = (
    "The cells of the CPU recipes are not quite the papers': the Transformer's input also enters "
    "the residual sum (direct), through a kernel over 2 tokens (injection_kernel); the TrellisNet "
    "is solved in pieces of 8 tokens (subsequence), by plain iteration. The tied stack has the "
    "same cell."
)
"""What a reader of any of our language tables must know of the recipes."""


def comparison(done: Results) -> Table:
    """Both networks of a cell after the same tokens: perplexity, convergence, memory, time."""
    rows: list[list[Any]] = []
    for cell, seeds in trainings.SEEDS.items():
        timed = done.get(quality.time_key(cell))
        for seed in seeds:
            key = trainings.deq_key(cell, seed)
            deq, tied = done.get(key), done.get(trainings.tied_key(cell, seed))
            judged = done.get(quality.quality_key(key))
            rows.append(
                [
                    NAMES[cell],
                    seed,
                    NOT_RUN if deq is None else evaluated(deq.value, "perplexity"),
                    NOT_RUN if tied is None else evaluated(tied.value, "perplexity"),
                    _ratio(deq, tied, lambda v: v["evaluation"]["perplexity"]),
                    *_judged(deq, judged),
                    _ratio(deq, tied, step_bytes),
                    _penalised_share(deq, tied),
                    *_lasted(deq, tied),
                    *(_timed(timed) if seed == seeds[0] else [None] * 3),
                ]
            )
    return Table(
        title=f"Equilibrium against {trainings.LAYERS} weight-tied layers after the same tokens",
        columns=[
            *("cell", "seed", "perplexity, DEQ", "tied", "ratio"),
            *("pieces a segment", "pieces converged, %", "rows converged, %", "adjoint cosine"),
            *("memory, ratio", "with the penalty"),
            *("training time, ratio", "on", "a step, in turns", "plain", "penalised"),
        ],
        rows=rows,
        note=f"Penn Treebank, test text. Converged, at {quality.TOLERANCE:g}: share of the solves, "
        "of which a segment has one a piece, and of the rows of segments all of whose pieces have "
        "converged. Cosine: between the gradient of the recipe's adjoint and the exact one, by the "
        "doctor. Memory with the penalty: of steps that the Jacobian penalty is drawn for, which "
        "hold a second backward graph. Training time: of both trainings, on the threads and the "
        "machine named; none where these differ. A step, in turns, of the first seed: over the "
        "stack's median, of trained networks, (1 - p) plain + p penalised with the recipe's share "
        "p of steps with "
        f"the penalty; both kinds apart beside it. {CELLS} "
        "Aimed at: perplexity ratio at most 1.03, 95 % of rows converged, cosine .99, memory 0.33, "
        "time 1.5.",
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
        if isinstance(deq, float) and len(known) == len(others):
            share: Any = deq / min(known)
        else:
            share = NOT_RUN if NOT_RUN in losses else DIVERGED
        rows.append([seed, *losses, share])
    return Table(
        title="Copy memory: equilibrium against recurrent networks of its size",
        columns=["seed", "DEQ", *map(str.upper, trainings.RECURRENT), "DEQ / the better other"],
        rows=rows,
        note="Test loss. Aimed at: at most 0.1 of both. The recipe copy-memory at either scale: it "
        "has no -gpu size.",
    )


def step_bytes(value: Mapping[str, Any]) -> float | None:
    """Bytes of a step as the network trains; of an equilibrium network at its dearest depth."""
    points = [p["bytes"] for p in value["memory"] or () if p["kind"] in ("deq", "explicit")]
    return max(points, default=None)


def step_ratio(timed: Mapping[str, Any], stage: str, kind: str = "step") -> float | None:
    """Milliseconds of a training step over the stack's; None where there are none of that kind.

    Args:
        timed: what `quality.times` has measured.
        stage: `begin` or `end`.
        kind: `plain`, `penalised`, or `step` for the mean over the draw.
    """
    taken = timed[stage]["deq"][kind]
    return None if taken is None else taken / timed[stage]["tied"]["step"]


def evaluated(value: Mapping[str, Any], figure: str) -> float | str:
    """A figure on the test set; "diverged" of a training that has."""
    return DIVERGED if value["diverged"] else value["evaluation"][figure]


def _ratio(deq: Done | None, tied: Done | None, figure: Callable[[Any], Any]) -> float | str | None:
    """The equilibrium network's figure over the stack's, or why there is none."""
    if (lack := _lack(deq, tied)) is not None:
        return lack
    assert deq is not None and tied is not None
    one, other = figure(deq.value), figure(tied.value)
    return None if one is None or other is None else one / other


def _lack(*trainings: Done | None) -> str | None:
    """Why nothing can be said of the trainings together: not run, or diverged."""
    finished = [each for each in trainings if each is not None]
    if len(finished) < len(trainings):
        return NOT_RUN
    return DIVERGED if any(each.value["diverged"] for each in finished) else None


def _judged(deq: Done | None, judged: Done | None) -> list[Any]:
    """Pieces, their share and that of the rows that converged, and the adjoint's cosine."""
    if (lack := _lack(deq)) is not None or judged is None:
        return [lack or NOT_RUN] * 4
    value = judged.value
    solves, rows = value["evaluation"]["forward"]["status"]["CONVERGED"], value["rows"]
    return [rows["pieces"], 100 * solves, 100 * rows["converged"], value["cosine"]]


def _penalised_share(deq: Done | None, tied: Done | None) -> float | str | None:
    """Bytes of a step with the Jacobian penalty over the stack's; "none" where there is none."""
    if _lack(deq) is None and deq is not None and deq.value["penalised_bytes"] is None:
        return "none"
    if (lack := _lack(deq, tied)) is not None:
        return lack
    assert deq is not None and tied is not None
    explicit = step_bytes(tied.value)
    return None if explicit is None else deq.value["penalised_bytes"] / explicit


def _lasted(deq: Done | None, tied: Done | None) -> list[Any]:
    """Seconds of all steps over the stack's, and where; the ratio alone is left out if unlike."""
    if (lack := _lack(deq, tied)) is not None:
        return [lack, None]
    assert deq is not None and tied is not None
    return [time_ratio(deq, tied), conditions(deq, tied)]


def _timed(timed: Done | None) -> list[Any]:
    """A trained network's step over the stack's, and both of its kinds."""
    if timed is None:
        return [NOT_RUN] * 3
    return [
        step_ratio(timed.value, "end"),
        step_ratio(timed.value, "end", "plain"),
        step_ratio(timed.value, "end", "penalised") or "none",
    ]
