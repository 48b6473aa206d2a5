"""Training speed of an epoch: units per second, evaluations per process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equilibria.run.tally import Tally

__all__ = ["imbalance", "throughput"]


def imbalance(
    works: Sequence[Sequence[int]], accumulate: int = 1
) -> tuple[float, float, float] | None:
    """Return the load imbalance between processes.

    In each step a process performs as many evaluations and products as its slowest sample needs,
    and the step ends when the last process has finished. With w_rs the work of process r in step s,

        idle = 1 - sum_s mean_r w_rs / sum_s max_r w_rs.

    Args:
        works: for each process, evaluations and products of each of its micro-batches.
        accumulate: micro-batches per step; processes wait for each other after the last.

    Returns:
        The mean over steps of the mean over processes, the mean over steps of the maximum, and the
        idle fraction; None if there were no solves.
    """
    steps = min(map(len, works), default=0) // accumulate
    if not steps:
        return None
    of_step = [
        [sum(work[accumulate * s : accumulate * (s + 1)]) for work in works] for s in range(steps)
    ]
    mean = sum(sum(work) / len(work) for work in of_step) / steps
    largest = sum(map(max, of_step)) / steps
    return mean, largest, 1.0 - mean / largest if largest else 0.0


def throughput(
    tallies: Sequence[Mapping[str, Any]],
    total: Tally,
    seconds: float,
    *,
    unit: str,
    accumulate: int = 1,
) -> dict[str, Any]:
    """Return the throughput record of an epoch, over all processes.

    Args:
        tallies: `Tally.state` of each process.
        total: the sum of all tallies.
        seconds: wall-clock time of the steps.
        unit: of the task.
        accumulate: micro-batches per step.

    Returns:
        `units_per_second` in the task's unit; where there were solves, `evaluations`, products
        included, per step, mean and maximum over processes, and the resulting `idle` fraction.
    """
    per_second = 1.0 / seconds if seconds > 0.0 else 0.0
    record: dict[str, Any] = {"units_per_second": total.units * per_second, "unit": unit}
    found = imbalance([state.get("work", ()) for state in tallies], accumulate)
    if found is not None:
        mean, largest, idle = found
        record |= {"evaluations": {"mean": mean, "max": largest}, "idle": idle}
    return record
