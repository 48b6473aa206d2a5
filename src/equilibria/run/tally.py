"""Sums over many batches, exact and small enough to save in a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from equilibria.run.tasks import Task
from equilibria.solve import Solution, Status

PERCENTILES = (50, 90, 99)
BINS = 20  # of estimated errors, in a factor of ten
NONE = 1e-20  # an error below which is none


@dataclass
class SolveTally:
    """How many samples took how many evaluations, how their solves ended, and how wrong those that
    converged are, by `Stats.error`, as BINS log10 of it, rounded up."""

    evals: Counter[int] = field(default_factory=Counter)
    status: Counter[str] = field(default_factory=Counter)
    error: Counter[int] = field(default_factory=Counter)

    def add(self, evals: Tensor, status: Tensor, error: Tensor | None = None) -> int:
        """Count a batch of tensors (batch,). Return the most evaluations in it."""
        if error is not None:
            known = error[(status == Status.CONVERGED) & error.isfinite()].double()
            self.error.update((BINS * known.clamp_min(NONE).log10()).ceil().long().tolist())
        most = 0
        for most, samples in _count(evals):  # in order
            self.evals[most] += samples
        for code, samples in _count(status):
            self.status[Status(code).name] += samples
        return most

    def summary(self) -> dict[str, Any]:
        """Return mean and percentiles of the evaluations, and the share of each status."""
        total = self.evals.total()
        if total == 0:
            return {"evals": None, "status": None}
        evals = {"mean": sum(k * n for k, n in self.evals.items()) / total}
        evals |= {f"p{p}": _percentile(self.evals, p) for p in PERCENTILES}
        evals["max"] = max(self.evals)
        found: dict[str, Any] = {
            "evals": evals,
            "status": {status.name: self.status[status.name] / total for status in Status},
        }
        if self.error:
            bins = {f"p{p}": _percentile(self.error, p) for p in PERCENTILES}
            found["error"] = {name: 10 ** (each / BINS) for name, each in bins.items()}
        return found


def _percentile(counts: Counter[int], percent: int) -> int:
    """Return the least number that `percent` of the samples did not exceed."""
    left = counts.total() * percent / 100
    for number, samples in sorted(counts.items()):
        left -= samples
        if left <= 0:
            return number
    raise AssertionError("the shares of all samples add up to all samples")


def _count(numbers: Tensor) -> Iterator[tuple[int, int]]:
    """Yield each of some numbers from 0 on with how often it is there."""
    # Not one by one in Python: a step may have a quarter of a million samples.
    counts = torch.bincount(numbers.flatten().long())
    return ((number, count) for number, count in enumerate(counts.tolist()) if count)


@dataclass
class Tally:
    """Sums of loss and metrics, and counts of forward and adjoint solves, so far.

    Attributes:
        sums: by name, on the CPU, in float64 or int64; `loss` and `units` among them.
        work: of each batch, how many evaluations and products its slowest samples took.
    """

    sums: dict[str, Tensor] = field(default_factory=dict)
    forward: SolveTally = field(default_factory=SolveTally)
    adjoint: SolveTally = field(default_factory=SolveTally)
    work: list[int] = field(default_factory=list)

    @property
    def units(self) -> int:
        """The denominator of the loss so far."""
        return int(self.sums["units"]) if self.sums else 0

    def add(self, sums: Mapping[str, Tensor]) -> None:
        """Add what a batch contributes to the sums, tensors of any shape."""
        for name, value in sums.items():
            wide = torch.float64 if value.is_floating_point() else torch.int64
            value = value.detach().to("cpu", wide, copy=True)  # a task may go on with its own
            self.sums[name] = self.sums[name] + value if name in self.sums else value

    def add_solves(
        self,
        solutions: Iterable[Solution],
        rows: Tensor | None = None,
        *,
        with_error: bool = False,
    ) -> None:
        """Count the solves behind a batch, forward and, once they were made, backward.

        Args:
            solutions: one per solve.
            rows: (batch,) bool, which samples count; None for all.
            with_error: count the estimated errors of forward solves too, which takes as long as a
                few small operations.
        """
        work = 0
        for solution in solutions:
            chosen = slice(None) if rows is None else rows
            stats = solution.stats
            error = stats.error[chosen] if with_error else None
            work += self.forward.add(stats.evals[chosen], solution.status[chosen], error)
            if (adjoint := solution.adjoint) is not None:
                work += self.adjoint.add(adjoint.stats.evals[chosen], adjoint.status[chosen])
        if work:
            self.work.append(work)

    def summary(self, task: Task, split: str | None = None) -> dict[str, Any]:
        """Return the task's figures, and means and shares of the solves.

        Args:
            task: whose sums they are.
            split: that was evaluated; None for batches of training.
        """
        return {
            **task.figures(self.sums, split),
            "forward": self.forward.summary(),
            "adjoint": self.adjoint.summary(),
        }

    def state(self) -> dict[str, Any]:
        """Return all as tensors, plain numbers and dictionaries; `restore` takes them back."""
        counts = {
            name: {kind: dict(count) for kind, count in vars(solves).items()}
            for name, solves in (("forward", self.forward), ("adjoint", self.adjoint))
        }
        return {"sums": dict(self.sums), **counts, "work": list(self.work)}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """Return the tally whose `state` this is."""
        solves = {
            name: SolveTally(**{kind: Counter(count) for kind, count in state[name].items()})
            for name in ("forward", "adjoint")
        }
        # Checkpoints of before they were counted have no errors and no work.
        return cls(dict(state["sums"]), **solves, work=list(state.get("work", ())))

    @classmethod
    def total(cls, states: Iterable[Mapping[str, Any]]) -> Tally:
        """Return the sum of several tallies, given the `state` of each, without their `work`."""
        total = Tally()
        for tally in map(cls.restore, states):
            total.add(tally.sums)
            for mine, other in ((total.forward, tally.forward), (total.adjoint, tally.adjoint)):
                for kind, count in vars(other).items():
                    getattr(mine, kind).update(count)
        return total


# --- throughput -----------------------------------------------------------------------------------

# Training speed of an epoch: units per second, evaluations per process.


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
