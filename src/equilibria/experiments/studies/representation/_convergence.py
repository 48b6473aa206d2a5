"""Number of evaluations from a state to the equilibrium, measured during training."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from equilibria.experiments.study import Context
from equilibria.nn import using
from equilibria.run import evaluation
from equilibria.run.models import EquilibriumModel
from equilibria.run.trainer import Trainer
from equilibria.solve import Picard

__all__ = ["Warmth", "warmth"]


@dataclass(frozen=True)
class Warmth:
    """A probe: evaluations of f until ||f(z) - z|| <= `rtol` ||f(z)||, by fixed-point iteration of
    at most `most` evaluations, from the kept states and from zero, with the weights of the next
    step.

    `kept` and `zero` use one norm over all points, as in the source; `kept_point` and `zero_point`
    are medians over points, with a separate norm for each. Nothing is changed.

    papers: Bai 2022 (thesis), Figure 8.3.
    """

    rtol: float = 0.01
    most: int = 200

    def __call__(self, trainer: Trainer) -> dict[str, Any]:
        """Return the figures of a trainer that reuses states."""
        model = cast(EquilibriumModel, trainer.model)
        batch = evaluation.to_device(trainer.batch(), trainer.accelerator)
        assert trainer.reuse is not None
        kept = trainer.reuse.cache.read(batch.numbers)
        with evaluation.evaluating(model), torch.no_grad():
            operands = model.inject(batch.inputs)
            found: dict[str, Any] = {}
            for name, start in (("kept", kept), ("zero", torch.zeros_like(kept))):
                with using(model, solver=Picard(rtol=self.rtol, max_evals=self.most)):
                    evals = model.deq(*operands, z0=start).stats.evals
                found[name] = self._together(model, start, operands)
                found[f"{name}_point"] = float(evals.double().median())
        return found

    def _together(self, model: EquilibriumModel, z: Tensor, operands: Any) -> int:
        """Evaluations until all points together have converged; `most` if they do not."""
        for count in range(1, self.most + 1):
            value = model.deq.cell(z, *operands)
            if (value - z).norm() <= self.rtol * value.norm():
                return count
            z = value
        return self.most


def warmth(context: Context) -> Iterable[dict[str, Any]]:
    """The probe's figures after each `step` at which it was called."""
    for record in context.run.metrics:
        yield {"step": record["step"], **record["probe"]}
