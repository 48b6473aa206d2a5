"""Measured after each epoch of a training: residuals within reach, and inexact gradients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.nn import using
from equilibria.nn.using import in_eval_mode
from equilibria.run import evaluation
from equilibria.run.models import EquilibriumModel
from equilibria.run.trainer import Trainer
from equilibria.solve import GMRES, Adjoint, Implicit, SolveWarning
from equilibria.stability import jacobian_norm

TIGHT = {"rtol": 1e-5, "max_evals": 300}


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
        model, batch = _probes(trainer)
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
        model, batch = _probes(trainer)
        own = cast(Any, model.deq.solver)
        solver = replace(own, **TIGHT, patience=None)
        parameters = [p for p in model.deq.parameters() if p.requires_grad]
        start: Any = None

        def gradient(adjoint: Adjoint) -> Tensor:
            nonlocal start
            with in_eval_mode(model), using(model, solver=solver, adjoint=adjoint):
                prediction = model(batch.inputs, z0=start)
                loss = trainer.task.loss(model, prediction.output, batch.targets)
                found = torch.autograd.grad(loss, parameters, allow_unused=True)
            if start is None:
                solution = prediction.solution
                start = pytree.tree_map(Tensor.detach, solution.value)
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


def _probes(trainer: Trainer) -> tuple[EquilibriumModel, Any]:
    """The model, and the first samples of the evaluation split."""
    batch = evaluation.probes(trainer.task, trainer.recipe.probes, trainer.accelerator)
    return cast(EquilibriumModel, trainer.model), batch
