"""Stabilising terms that training adds to the loss, and their statistics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from equilibria.run.hooks import Forward, Hook
from equilibria.run.processes import total_over
from equilibria.run.recipe import Recipe
from equilibria.solve import Solution
from equilibria.stability import jacobian_penalty


class Stabilizer(Hook):
    """The regulariser and the correction of a run whose recipe has either or both.

    Args:
        recipe: of the run.
        steps_per_epoch: of the run.
        accelerator: gives the process and the device.
    """

    name = "stabiliser"

    def __init__(self, recipe: Recipe, steps_per_epoch: int, accelerator: Accelerator) -> None:
        self.recipe, self.accelerator = recipe, accelerator
        self.steps_per_epoch = steps_per_epoch
        # Sums over the steps of this epoch, on this process, that had a solve.
        self.counts: dict[str, float] = defaultdict(float)
        self.factor = 1.0  # multiplies gamma; set by the controller
        self.evals = 0.0  # of all samples since the factor last changed
        self.samples = 0
        # mean evaluations of the last solves, over all processes; for the correction
        self.length = float(recipe.solver.max_evals) if recipe.solver else 0.0

    def options(self) -> dict[str, Any]:
        """Return after which evaluations the next solve should keep its iterate, as `states`."""
        correction = self.recipe.correction
        return {} if correction is None else {"states": correction.depths(self.length)}

    def term(self, step: int, forward: Forward) -> Tensor | None:
        """Return the sum of correction and penalty of a micro-batch.

        For a model with several consecutive solves, the penalty is their mean.
        """
        solutions, share, penalized = forward.prediction.solutions, forward.share, forward.penalized
        terms: list[Tensor] = []
        self.counts["steps"] += share
        if (correction := self.recipe.correction) is not None:
            states = list(zip(*(each.states for each in solutions), strict=True))
            terms.append(correction(forward.early_loss, states))
            self.counts["correction"] += float(terms[-1].detach())
        if (regularizer := self.recipe.regularizer) is not None:
            begin, steps = self.recipe.segment(step, self.steps_per_epoch)
            gamma = regularizer.at(step - begin, steps)[0]
            weight = share * self.factor * gamma
            if penalized is None:
                penalized = regularizer.drawn(step, steps, self.recipe.seed, begin)
            self.counts["gamma"] += weight
            if penalized and weight > 0.0:
                penalties = [jacobian_penalty(each, regularizer.samples) for each in solutions]
                penalty = sum(penalties[1:], penalties[0]) / len(penalties)
                terms.append(weight * penalty)
                self.counts["applied"] += share
                self.counts["penalty"] += share * float(penalty.detach())
        return sum(terms[1:], terms[0]) if terms else None

    def observe(self, step: int, solutions: Sequence[Solution]) -> None:
        """Record the evaluations of a step's solves."""
        controller = self.recipe.regularizer and self.recipe.regularizer.controller
        evals = torch.cat([each.stats.evals for each in solutions])
        if self.recipe.correction is not None:  # its depths are the same on all processes
            self.length = self._mean(float(evals.sum()), evals.numel())
        if not controller:
            return
        self.evals += float(evals.sum())
        self.samples += evals.numel()
        if (step + 1) % controller.every == 0:
            self.factor = controller.adapt(self.factor, self._mean(self.evals, self.samples))
            self.evals, self.samples = 0.0, 0

    def _mean(self, total: float, count: int) -> float:
        """Return the mean over all processes, given the sum and the count on this one."""
        whole, number = total_over(self.accelerator, total, count)
        return whole / number

    def finish_epoch(self) -> dict[str, Any]:
        """Return the log of an epoch, and reset the counts."""
        total: dict[str, float] = defaultdict(float)
        for each in gather_object([dict(self.counts)]):
            for name, value in each.items():
                total[name] += value
        self.counts = defaultdict(float)
        steps = max(1, total["steps"])
        record: dict[str, Any] = {}
        if self.recipe.regularizer is not None:
            record["regulariser"] = {
                "penalty": total["penalty"] / total["applied"] if total["applied"] else None,
                "applied": total["applied"] / steps,
                "gamma": total["gamma"] / steps,
            }
            if self.recipe.regularizer.controller is not None:
                record["regulariser"]["factor"] = self.factor
        if self.recipe.correction is not None:
            record["correction"] = {"loss": total["correction"] / steps}
        return record

    def state(self) -> dict[str, Any]:
        """Return the state as plain numbers, for `restore`."""
        return {
            "counts": dict(self.counts),
            "factor": self.factor,
            "evals": self.evals,
            "samples": self.samples,
            "length": self.length,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `state`."""
        self.counts = defaultdict(float, state["counts"])
        self.factor, self.evals = state["factor"], state["evals"]
        self.samples, self.length = state["samples"], state["length"]
