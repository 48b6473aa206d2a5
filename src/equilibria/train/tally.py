"""Counts over many batches, exact and small enough to save in a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from equilibria.solve import Solution, Status

PERCENTILES = (50, 90, 99)

Summary = dict[str, Any]
"""Figures by name, as a line of metrics.jsonl has them."""


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
    """Loss, right answers, and forward and adjoint solves of what was seen so far.

    Attributes:
        units: samples, or tokens of a text.
        loss: summed over the units.
        answers: how many were checked.
        correct: how many of these were right.
    """

    units: int = 0
    loss: float = 0.0
    answers: int = 0
    correct: int = 0
    forward: SolveTally = field(default_factory=SolveTally)
    adjoint: SolveTally = field(default_factory=SolveTally)

    def add(self, loss: float, units: int, correct: Tensor | None = None) -> None:
        """Count a batch: its loss, a mean over so many units, and bool which answers are right."""
        self.units += units
        self.loss += loss * units
        if correct is not None:
            self.answers += correct.numel()
            self.correct += int(correct.sum())

    def add_solves(self, solutions: Iterable[Solution], rows: Tensor | None = None) -> None:
        """Count the solves behind a batch, forward and, once they were made, backward.

        Args:
            solutions: one a solve.
            rows: (batch,) bool, which samples count; None for all.
        """
        for solution in solutions:
            chosen = slice(None) if rows is None else rows
            self.forward.add(solution.stats.evals[chosen], solution.status[chosen])
            if (adjoint := solution.adjoint) is not None:
                self.adjoint.add(adjoint.stats.evals[chosen], adjoint.status[chosen])

    def summary(self, figures: Callable[[float], Mapping[str, float]] | None = None) -> Summary:
        """Return means and shares over all that was seen.

        Args:
            figures: mean loss -> what that means in other units, by name.
        """
        loss = self.loss / self.units
        return {
            "loss": loss,
            **({"accuracy": self.correct / self.answers} if self.answers else {}),
            **({} if figures is None else figures(loss)),
            "forward": self.forward.summary(),
            "adjoint": self.adjoint.summary(),
        }

    def state(self) -> dict[str, Any]:
        """Return the counts as plain numbers and dictionaries; `restore` takes them back."""
        solves = {
            name: {"evals": dict(solve.evals), "status": dict(solve.status)}
            for name, solve in (("forward", self.forward), ("adjoint", self.adjoint))
        }
        return {name: getattr(self, name) for name in _SUMS} | solves

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """Return the tally whose `state` this is."""
        solves = {
            name: SolveTally(Counter(state[name]["evals"]), Counter(state[name]["status"]))
            for name in ("forward", "adjoint")
        }
        return cls(*(state[name] for name in _SUMS), **solves)

    @classmethod
    def total(cls, tallies: Iterable[Tally]) -> Tally:
        """Return the tally of all that several have seen."""
        total = Tally()
        for tally in tallies:
            for name in _SUMS:
                setattr(total, name, getattr(total, name) + getattr(tally, name))
            for mine, other in ((total.forward, tally.forward), (total.adjoint, tally.adjoint)):
                mine.evals.update(other.evals)
                mine.status.update(other.status)
        return total


_SUMS = ("units", "loss", "answers", "correct")
