"""Training steps that go on from the states of the step before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from accelerate import Accelerator

from equilibria.run.hooks import Hook
from equilibria.run.models import EquilibriumModel, Prediction
from equilibria.run.models.reuse import Cache, reuse
from equilibria.run.tasks import Batch, Task
from equilibria.run.trees import to_device


class Reuse(Hook):
    """The states of all training samples, and what the steps of an epoch made of them.

    Args:
        task: whose samples are numbered.
        model: what is trained.
        accelerator: of this process, the only one.

    Raises:
        ValueError: inputs change from step to step; or there are several processes.

    papers: Bai 2022 (thesis), sec. 8.2.2.
    """

    name = "reuse"

    def __init__(self, task: Task, model: EquilibriumModel, accelerator: Accelerator) -> None:
        if task.numbered is None:
            raise ValueError(f"reuse is true, but {task.refused}")
        if accelerator.num_processes > 1:
            raise ValueError(
                f"reuse is true, and there are {accelerator.num_processes} processes: states are "
                "kept by one; train with one, or set reuse to false"
            )
        self.model, self.accelerator = model, accelerator
        self.cache = Cache(task.numbered)
        with torch.no_grad():
            inputs = to_device(task.sample("train", 1).inputs, accelerator.device)
            state = model.deq.start(*model.inject(inputs))
            self.width = state.numel() * state.element_size()
        self._overall: list[float] = []
        self._solves = 0

    @property
    def bytes(self) -> int:
        """Memory of the cache once each sample has been seen."""
        return self.cache.samples * (self.width + 1)

    def predict(self, batch: Batch) -> Prediction:
        """Return the prediction for a batch: by one evaluation, once each sample is known."""
        with self.accelerator.autocast():
            prediction = reuse(self.model, batch.inputs, self.cache, batch.numbers)
        # The solution's own f would keep the operands in memory. Only a regulariser evaluates it,
        # and a recipe with reuse has none.
        solution = replace(prediction.solution, _evaluate=None)
        overall = solution.stats.overall
        if overall is None:
            self._solves += 1
        else:
            self._overall.append(float(overall))
        return prediction._replace(solutions=(solution,))

    def finish_epoch(self) -> dict[str, Any]:
        """Return what the epoch's record holds of its steps, under "reuse".

        `residual` is ||f(z) - z|| / ||f(z)|| over all samples of a step together, as the papers
        measure it: the mean over steps, the largest and the last; None where every step solved.
        `solves` is the number of batches that were solved as usual.
        """
        known = self._overall
        residual = None
        if known:
            mean = math.fsum(known) / len(known) if all(map(math.isfinite, known)) else math.nan
            residual = {"mean": mean, "max": max(known), "last": known[-1]}
        found = {"reuse": {"residual": residual, "solves": self._solves, "bytes": self.cache.bytes}}
        self._overall, self._solves = [], 0
        return found

    def state(self) -> dict[str, Any]:
        """Return all that a checkpoint holds."""
        return {
            "cache": to_device(self.cache.state_dict(), "cpu"),
            "overall": list(self._overall),
            "solves": self._solves,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `state` gave.

        Raises:
            ValueError, LookupError: it is of another run.
        """
        self.cache.load_state_dict(to_device(state["cache"], self.accelerator.device))
        self._overall, self._solves = list(state["overall"]), int(state["solves"])
