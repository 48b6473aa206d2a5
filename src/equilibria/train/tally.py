"""Counts over many batches, exact and small enough to save in a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from equilibria.solve import Status

PERCENTILES = (50, 90, 99)


@dataclass
class SolveTally:
    """How many samples took how many evaluations, and how their solves ended."""

    evals: Counter[int] = field(default_factory=Counter)
    status: Counter[str] = field(default_factory=Counter)

    def add(self, evals: Tensor, status: Tensor) -> None:
        """Count a batch: `evals` and `status` are (batch,)."""
        self.evals.update(evals.tolist())
        self.status.update(Status(code).name for code in status.tolist())

    def summary(self) -> dict[str, Any]:
        """Return mean and percentiles of the evaluations, and the share of each status."""
        total = self.evals.total()
        if total == 0:
            return {"evals": None, "status": None}
        evals = {"mean": sum(k * n for k, n in self.evals.items()) / total}
        evals |= {f"p{p}": self._percentile(p) for p in PERCENTILES}
        evals["max"] = max(self.evals)
        return {
            "evals": evals,
            "status": {status.name: self.status[status.name] / total for status in Status},
        }

    def _percentile(self, percent: int) -> int:
        """Return the least number of evaluations that `percent` of the samples did not exceed."""
        left = self.evals.total() * percent / 100
        for evals, samples in sorted(self.evals.items()):
            left -= samples
            if left <= 0:
                return evals
        raise AssertionError("the shares of all samples add up to all samples")


@dataclass
class Tally:
    """Loss, metric, and forward and adjoint solves of the samples seen so far."""

    samples: int = 0
    loss: float = 0.0
    correct: int = 0
    forward: SolveTally = field(default_factory=SolveTally)
    adjoint: SolveTally = field(default_factory=SolveTally)

    def add(self, loss: float, correct: Tensor, forward: Any, adjoint: Any = None) -> None:
        """Count a batch.

        Args:
            loss: mean over the batch.
            correct: (batch,) bool.
            forward: a `Solution`.
            adjoint: its `adjoint`, or None where none was solved for.
        """
        self.samples += len(correct)
        self.loss += loss * len(correct)
        self.correct += int(correct.sum())
        self.forward.add(forward.stats.evals, forward.status)
        if adjoint is not None:
            self.adjoint.add(adjoint.stats.evals, adjoint.status)

    def summary(self) -> dict[str, Any]:
        """Return means and shares over all samples seen."""
        return {
            "loss": self.loss / self.samples,
            "accuracy": self.correct / self.samples,
            "forward": self.forward.summary(),
            "adjoint": self.adjoint.summary(),
        }

    def state(self) -> dict[str, Any]:
        """Return the counts as plain numbers and dictionaries; `restore` takes them back."""
        solves = {
            name: {"evals": dict(solve.evals), "status": dict(solve.status)}
            for name, solve in (("forward", self.forward), ("adjoint", self.adjoint))
        }
        return {"samples": self.samples, "loss": self.loss, "correct": self.correct, **solves}

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """Return the tally whose `state` this is."""
        solves = {
            name: SolveTally(Counter(state[name]["evals"]), Counter(state[name]["status"]))
            for name in ("forward", "adjoint")
        }
        return cls(state["samples"], state["loss"], state["correct"], **solves)

    @classmethod
    def total(cls, tallies: Iterable[Tally]) -> Tally:
        """Return the tally of all samples of several."""
        total = Tally()
        for tally in tallies:
            total.samples += tally.samples
            total.loss += tally.loss
            total.correct += tally.correct
            for mine, other in ((total.forward, tally.forward), (total.adjoint, tally.adjoint)):
                mine.evals.update(other.evals)
                mine.status.update(other.status)
        return total
