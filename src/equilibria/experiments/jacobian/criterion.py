"""What is asked of the penalty: a third of the evaluations at no loss."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from equilibria.bench.record import Table
from equilibria.experiments.case import Done, Results
from equilibria.experiments.duration import time_ratio
from equilibria.experiments.experiment import NOT_RUN
from equilibria.experiments.jacobian import costs, images
from equilibria.experiments.jacobian.accuracies import (
    BEST,
    CHOSEN,
    EVALUATED,
    LIMIT,
    THIRD,
    accuracy,
)

__all__ = ["criterion", "epoch_seconds", "losses"]

# What is asked: points that the penalty may cost; points, and times as many as the penalty's, that
# stopping early must cost without it; and times as long that an epoch must take without it.
KEPT, LOST, TIMES_AS_MUCH, SHORTER = 0.5, 1.0, 3.0, 1.5


def criterion(done: Results) -> Table:
    """What the penalty keeps and what stopping early loses, seed by seed and as a mean.

    A mean is over the seeds that have all accuracies, of times too: None where one has no time.
    """
    rows: list[list[Any]] = []
    known: list[tuple[float, float, float]] = []
    turns: list[float | None] = []
    epochs: list[float | None] = []
    for seed in images.ALL:
        full, early = (accuracy(done, "plain", seed, limit) for limit in (LIMIT, THIRD))
        kept = accuracy(done, BEST, seed, THIRD)
        times = [_step_ratio(done, seed), _epoch_ratio(done, seed)]
        if isinstance(full, str) or isinstance(early, str) or isinstance(kept, str):
            rows.append([str(seed), full, early, kept, *[None] * 3, *times, None])
            continue
        known.append((full, early, kept))
        turns.append(times[0])
        epochs.append(times[1])
        rows.append([str(seed), *_lost(full, early, kept), *times, _verdict(known[-1:], *times)])
    if known:
        means = (statistics.fmean(each) for each in zip(*known, strict=True))
        times = [_mean(turns), _mean(epochs)]
        rows.append([f"mean of {len(known)}", *_lost(*means), *times, _verdict(known, *times)])
    return Table(
        title=f"A third of the evaluations: {THIRD} against {LIMIT}",
        columns=[
            *("seed", f"without penalty, {LIMIT}: accuracy, %", f"stopped at {THIRD}, %"),
            f"with penalty, trained and read at {THIRD}, %",
            *("lost by the penalty, points", "lost by stopping, points"),
            *("stopping over penalty", "a training step without over with, in turns"),
            *("an epoch without over with, as trained", "as asked"),
        ],
        rows=rows,
        note=f"Test accuracy; gamma {images.BEST:g}. As asked: the penalty costs at most {KEPT:g} "
        f"points, stopping early at least {LOST:g} and {TIMES_AS_MUCH:g} times as much as the "
        f"penalty, and training takes at least {SHORTER:g} times as long without it. Times are "
        "judged by steps of the trained networks in turns, in one process, plain and penalised "
        "ones weighed by their shares: an epoch has as many steps with the penalty as without. "
        "Where these are missing, by the seconds of an epoch as trained: medians over the epochs "
        "after the shallow start, of trainings with as many threads on one machine, which other "
        "work may have slowed. A mean is over the seeds that have all three accuracies. "
        f"{EVALUATED} {CHOSEN}",
    )


def losses(done: Results) -> Table:
    """Points lost by stopping at each limit, with the penalty and without, over common seeds."""
    rows: list[list[Any]] = []
    for limit in costs.LIMITS[:-1]:
        lost: list[tuple[float, float]] = []
        for seed in images.ALL:
            full, early = (accuracy(done, "plain", seed, n) for n in (LIMIT, limit))
            kept = accuracy(done, BEST, seed, limit)
            if not (isinstance(full, str) or isinstance(early, str) or isinstance(kept, str)):
                lost.append((full - kept, full - early))
        if not lost:
            rows.append([limit, NOT_RUN, *[None] * 3])
            continue
        penalty, stopping = (statistics.fmean(each) for each in zip(*lost, strict=True))
        ratio = stopping / penalty if penalty > 0 else None
        rows.append([limit, penalty, stopping, ratio, len(lost)])
    return Table(
        title=f"Points lost against {LIMIT} evaluations without penalty",
        columns=[
            *("evaluations at most", "with penalty", "without, stopped", "stopped over penalty"),
            "seeds",
        ],
        rows=rows,
        note=f"Test accuracy of the network without penalty at {LIMIT}, less that at a limit; "
        f"means over the seeds, gamma {images.BEST:g}, trained with at most {THIRD}. Below 0 the "
        "penalty gains.",
    )


def epoch_seconds(training: Done) -> float | None:
    """Return the median seconds of the steps of an epoch, the shallow start left out.

    None of a training that has no whole epoch of solves.
    """
    pretrain = training.record["settings"]["recipe"].get("pretrain")
    shallow = pretrain["steps"] if pretrain else 0
    begins = [0, *(epoch["step"] for epoch in training.value["metrics"])]
    seconds = [
        epoch["seconds"]
        for begin, epoch in zip(begins, training.value["metrics"], strict=False)
        if begin >= shallow
    ]
    return statistics.median(seconds) if seconds else None


def _epoch_ratio(done: Results, seed: int) -> float | None:
    """Seconds of an epoch without the penalty over those with it, where both ran alike."""
    plain, best = (done.get(images.key(name, seed)) for name in ("plain", BEST))
    if plain is None or best is None or time_ratio(plain, best) is None:
        return None
    seconds = epoch_seconds(plain), epoch_seconds(best)
    return None if seconds[0] is None or seconds[1] is None else seconds[0] / seconds[1]


def _step_ratio(done: Results, seed: int) -> float | None:
    """Time of a training step without the penalty over that with it, taken in turns."""
    found = done.get(costs.times_key(seed))
    if found is None:
        return None
    steps = found.value["steps"]
    return steps["plain"]["step"] / steps["regularised"]["step"]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [each for each in values if each is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _lost(full: float, early: float, kept: float) -> list[Any]:
    penalty, stopping = full - kept, full - early
    ratio = stopping / penalty if penalty > 0 else "the penalty costs nothing"
    return [full, early, kept, penalty, stopping, ratio]


def _verdict(
    known: Sequence[tuple[float, float, float]], turns: float | None, epochs: float | None
) -> str:
    """Whether the means are as asked; where no times can be compared, of the accuracies alone."""
    full, early, kept = (statistics.fmean(each) for each in zip(*known, strict=True))
    penalty, stopping = full - kept, full - early
    accurate = penalty <= KEPT and stopping >= max(LOST, TIMES_AS_MUCH * penalty)
    ratio = epochs if turns is None else turns
    if ratio is None:
        return f"accuracy {'yes' if accurate else 'no'}, time not compared"
    fast = ratio >= SHORTER
    if accurate == fast:
        return "yes" if fast else "no"
    return f"accuracy {'yes' if accurate else 'no'}, time {'yes' if fast else 'no'}"
