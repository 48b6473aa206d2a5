"""Measured after each epoch of a training: how well forward and backward can be solved."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from equilibria.nn import using
from equilibria.nn.using import in_eval_mode
from equilibria.run import evaluation
from equilibria.run.models import EquilibriumModel
from equilibria.run.trainer import Trainer
from equilibria.solve import Implicit
from equilibria.stability import jacobian_norm


@dataclass(frozen=True)
class Probing:
    """A probe with solves of a fixed length, whatever the limits in training.

    On the first samples of the evaluation split, without dropout: `forward` and `adjoint`, relative
    residuals after so many evaluations and products of the solvers that train, means over the
    samples, and `norm`, ||J||_F^2 / d at the state found, d its entries. The linear solver is that
    of `Implicit` where training solves no linear system. The model is left as it is.

    papers: Bai et al. 2021, figures 1, 3 and 10.
    """

    forward: int
    adjoint: int

    def __call__(self, trainer: Trainer) -> dict[str, Any]:
        """Return the figures of a trainer's model."""
        model = cast(EquilibriumModel, trainer.model)
        batch = evaluation.probes(trainer.task, trainer.recipe.probes, trainer.accelerator)
        solver, usual = cast(Any, model.deq.solver), model.deq.adjoint
        exact = usual if isinstance(usual, Implicit) else Implicit()
        linear = replace(cast(Any, exact.linear), rtol=0.0, max_evals=self.adjoint)
        solver = replace(solver, rtol=0.0, max_evals=self.forward, patience=None)
        methods = using(model, solver=solver, adjoint=replace(exact, linear=linear))
        with in_eval_mode(model), methods, torch.enable_grad():
            operands = model.inject(batch.inputs)
            solution = model.deq(*operands)
            trainer.task.loss(model, model.readout(solution.value), batch.targets).backward()
            norms = jacobian_norm(model.deq.cell, solution.value, *operands, samples=4)
        model.zero_grad(set_to_none=True)
        entries = sum(leaf.numel() for leaf in pytree.tree_leaves(solution.value)) / len(norms)
        backward = solution.adjoint
        return {
            "forward": float(solution.stats.residual.mean()),
            "adjoint": None if backward is None else float(backward.stats.residual.mean()),
            "norm": float(norms.double().square().mean()) / entries,
        }
