"""What a reader has to know before the figures: what they rest on, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from equilibria.precision import too_fine
from equilibria.run.report.reading import (
    Run,
    converged,
    judged,
    judged_on,
    last,
    number,
    pick,
    smallest,
)
from equilibria.words import percent, plural

__all__ = ["remarks"]

_FEW = 0.99
"""Share of converged solves below which every figure is qualified, as at the end of training."""


def remarks(run: Run) -> list[str]:
    """Sentences about a run; none about one that finished, converged and was examined."""
    parts = (_unfinished, _broken, _unsolved, _stalled, _left_out)
    return [sentence for part in parts for sentence in part(run)]


def _unfinished(run: Run) -> Iterator[str]:
    """Training that was stopped, and test data that were not evaluated."""
    done, planned = number(last(run), "epoch"), number(run, "recipe", "epochs")
    if done < planned:
        yield f"Training has not finished: this is the state after epoch {done:.0f} of {planned:g}."
    if not run.get("evaluation"):
        of = f"the {judged_on(run)} data after the last epoch"
        yield f"There is no final evaluation: the figures are those of {of}."


def _broken(run: Run) -> Iterator[str]:
    """Losses that are no numbers."""
    epochs = [
        row.get("epoch")
        for row in run["metrics"]
        if _lost(row.get("train")) or _lost(row.get("held"))
    ]
    if epochs:
        which = f"epoch {epochs[0]}"
        if len(epochs) > 1:
            which = f"{plural(len(epochs), 'epoch')}, the first of them epoch {epochs[0]}"
        yield f"The loss was NaN or infinite in {which}: training broke down there."
    if _lost(run.get("evaluation")):
        yield "The loss on the test data is NaN or infinite: the network's output means nothing."
    lost, on = number(judged(run), "forward", "status", "NONFINITE"), judged_on(run)
    if lost > 0:
        which = f"Every {on} solve" if lost == 1 else f"{percent(lost)} of the {on} solves"
        yield f"{which} ended in NaN or infinity."


def _lost(figures: Mapping[str, Any] | None) -> bool:
    return bool(figures) and "loss" in figures and not math.isfinite(number(figures, "loss"))


def _unsolved(run: Run) -> Iterator[str]:
    """Solves that did not converge."""
    found, on = converged(run), judged_on(run)
    if number(judged(run), "forward", "status", "NONFINITE") == 1:
        return  # which has been said
    if found == 0:
        yield (
            f"No {on} solve converged: the figures are of the states at which the solver stopped, "
            "which are not fixed points."
        )
    elif found < _FEW:
        yield (
            f"{percent(found)} of the {on} solves converged: the figures are over all samples, "
            "also those whose solver stopped short of a fixed point."
        )


def _stalled(run: Run) -> Iterator[str]:
    """Tolerances that the precision cannot reach; the doctor says it too, where it was asked."""
    rtol = smallest(pick(run, "recipe", "solver", "rtol"))
    precision = str(pick(run, "recipe", "precision"))
    said = too_fine(precision, rtol, pick(judged(run), "forward", "status"))
    if said is not None and not run.get("examination"):
        yield " ".join(said)


def _left_out(run: Run) -> Iterator[str]:
    """An examination that was not made, and test images that were not looked at."""
    if reason := run.get("unexamined"):
        yield f"The run was not examined: {reason}."
    if reason := run.get("unpictured"):
        yield f"No test images are shown: {reason}."
