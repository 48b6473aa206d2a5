"""What is measured after each epoch of a training: how well both equations can be solved now."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from equilibria.models import EquilibriumModel
from equilibria.solve import Implicit
from equilibria.stability import jacobian_norm
from equilibria.train import evaluation
from equilibria.train.trainer import Probe, Trainer

__all__ = ["SAMPLES", "probing"]

SAMPLES = 4
"""Draws for the norm of each sample's Jacobian."""


def probing(forward: int, adjoint: int) -> Probe:
    """Return a probe of solves of a fixed length, whatever training allows itself.

    On the first samples that the training is judged by, without dropout: `forward` and `adjoint`,
    relative residuals after so many evaluations and products, means over the samples, and `norm`,
    ||J||_F^2 / d at the state found, d its entries. The model is left as it is.

    Args:
        forward: evaluations of the solver that trains.
        adjoint: products of the linear solver that trains, or of `Implicit`'s own where training
            solves no linear system.

    papers: Bai et al. 2021, figures 1, 3 and 10.
    """

    def probe(trainer: Trainer) -> dict[str, Any]:
        model = cast(EquilibriumModel, trainer.model)
        batch = evaluation.probes(trainer.task, trainer.recipe.probes, trainer.accelerator)
        usual = model.deq.adjoint
        exact = usual if isinstance(usual, Implicit) else Implicit()
        solver = replace(cast(Any, model.deq.solver), rtol=0.0, max_evals=forward, patience=None)
        linear = replace(cast(Any, exact.linear), rtol=0.0, max_evals=adjoint)
        with evaluation.evaluating(model, solver):
            model.deq.adjoint = replace(exact, linear=linear)
            try:
                with torch.enable_grad():
                    operands = model.inject(batch.inputs)
                    solution = model.deq(*operands)
                    output = model.readout(solution.value)
                    trainer.task.loss(model, output, batch.targets).backward()
                norms = jacobian_norm(model.deq.cell, solution.value, *operands, samples=SAMPLES)
            finally:
                model.deq.adjoint = usual
                model.zero_grad(set_to_none=True)
        entries = sum(leaf.numel() for leaf in pytree.tree_leaves(solution.value))
        backward = solution.adjoint
        return {
            "forward": float(solution.stats.residual.mean()),
            "adjoint": None if backward is None else float(backward.stats.residual.mean()),
            "norm": float(norms.double().square().mean()) / (entries / len(batch.inputs)),
        }

    return probe
