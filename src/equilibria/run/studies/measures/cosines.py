"""Measured after each epoch of a training: how far inexact gradients are from the exact one."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch.utils import _pytree as pytree

from equilibria.nn import using
from equilibria.nn.using import in_eval_mode
from equilibria.run import evaluation
from equilibria.run.models import EquilibriumModel
from equilibria.run.trainer import Trainer
from equilibria.solve import GMRES, Adjoint, Implicit, SolveWarning

TIGHT = {"rtol": 1e-5, "max_evals": 300}


@dataclass(frozen=True)
class Cosines:
    """A probe of several adjoints at one solution, that of a network on its way.

    On the first samples of the evaluation split, without dropout: `cosine NAME` and `length NAME`,
    the cosine and the ratio of lengths of each adjoint's gradient and the exact one, of all
    parameters of the equilibrium layer; `reference`, the larger relative residual of the solution
    and of the exact adjoint, mean over the samples. The model is left as it is.

    papers: Bai 2022 (thesis), figure 5.2.
    """

    adjoints: Mapping[str, Adjoint]

    def __call__(self, trainer: Trainer) -> dict[str, Any]:
        """Return the figures of a trainer's model."""
        model = cast(EquilibriumModel, trainer.model)
        batch = evaluation.probes(trainer.task, trainer.recipe.probes, trainer.accelerator)
        own = cast(Any, model.deq.solver)
        solver = replace(own, **TIGHT, patience=None)
        parameters = [p for p in model.deq.parameters() if p.requires_grad]
        start: Any = None

        def gradient(adjoint: Adjoint) -> torch.Tensor:
            nonlocal start
            with in_eval_mode(model), using(model, solver=solver, adjoint=adjoint):
                prediction = model(batch.inputs, z0=start)
                loss = trainer.task.loss(model, prediction.output, batch.targets)
                found = torch.autograd.grad(loss, parameters, allow_unused=True)
            if start is None:
                solution = prediction.solution
                start = _detach(solution.value)
                backward = solution.adjoint
                assert backward is not None
                residuals.append(float(solution.stats.residual.mean()))
                residuals.append(float(backward.stats.residual.mean()))
            return torch.cat([g.flatten().double() for g in found if g is not None])

        residuals: list[float] = []
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore", SolveWarning)  # the residual is told beside
            exact = gradient(Implicit(linear=GMRES(**TIGHT, restart=50)))
            figures: dict[str, Any] = {"reference": max(residuals)}
            for name, adjoint in self.adjoints.items():
                found = gradient(adjoint)
                lengths = found.norm() * exact.norm()
                figures[f"cosine {name}"] = float(found @ exact / lengths)
                figures[f"length {name}"] = float(found.norm() / exact.norm())
        return figures


def _detach(value: Any) -> Any:
    return pytree.tree_map(lambda x: x.detach(), value)
