"""Whom the doctor sees: a module, the layer in it, its inputs; and the same in float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equilibria.nn import DEQ
from equilibria.nn.frozen import module_of
from equilibria.nn.using import layers, using
from equilibria.solve import (
    GMRES,
    Broyden,
    Implicit,
    NewtonKrylov,
    Picard,
    Solution,
    Solver,
    Status,
)
from equilibria.stability.trees import map_floats

EXACT = 1e-10
"""Relative residual of what the doctor calls exact."""


@dataclass(frozen=True)
class Seen:
    """One call of a module: what came out, and what went into and came out of its layer.

    `coupled` says which rows of the operands are one sample: each by itself (False), all (True), or
    those of the same number in an index.
    """

    output: Any
    operands: tuple[Any, ...]
    coupled: bool | Tensor
    solution: Solution


@dataclass(frozen=True)
class Patient:
    """A module in evaluation mode, the layer in it, and its inputs.

    `merged`: samples of many rows each, such as graphs, are examined as one.
    """

    module: nn.Module
    layer: DEQ
    path: str
    inputs: tuple[Any, ...]
    merged: bool = True

    @classmethod
    def admit(cls, module: nn.Module, inputs: tuple[Any, ...], *, merged: bool = True) -> Patient:
        found = list(layers(module))
        if len(found) != 1:
            paths = ", ".join(found) or "none"
            raise ValueError(
                f"{type(module).__name__} should hold one equilibrium layer (eq.DEQ), found "
                f"{paths}. Pass the layer itself, with its own inputs"
            )
        path = found[0]
        module = copy.deepcopy(module).eval()
        layer = module.get_submodule(path)
        assert isinstance(layer, DEQ)
        if layer.has_aux:
            raise ValueError(
                "the layer has has_aux=True, and what is measured takes its cell for the map "
                "itself: pass a layer whose cell returns the state alone"
            )
        return cls(module, layer, path, inputs, merged)

    def double(self) -> Patient:
        """A copy in float64."""
        module = copy.deepcopy(self.module).double()
        layer = module.get_submodule(self.path)
        assert isinstance(layer, DEQ)
        if (owner := module_of(layer.cell)) is not None:  # a method's module is no sub-module
            owner.double()
        inputs = map_floats(Tensor.double, self.inputs)
        return Patient(module, layer, self.path, inputs, self.merged)

    def call(self, value: Any = None, leaves: bool = False, **keywords: Any) -> Seen:
        """Calls the module, with other keywords for its layer.

        Args:
            value: what the layer is made to answer, in place of its solution.
            leaves: cut the graph before the layer, so that gradients end at its operands.
            keywords: of the layer's forward.
        """
        operands: list[tuple[Any, ...]] = []
        coupled: list[bool | Tensor] = []
        solutions: list[Solution] = []

        def before(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
            if leaves:
                args = map_floats(lambda x: x.detach().requires_grad_(), args)
            operands.append(args)
            if named := given.keys() - {*DEQ.options}:
                raise ValueError(
                    f"the layer is given {', '.join(sorted(named))} by name, and what is measured "
                    "calls its cell by position: pass all inputs of the layer by position"
                )
            given = given | keywords
            if self.merged and isinstance(given.get("coupled"), Tensor):
                # The layer is a copy, and what is measured of it reads there how its rows hang
                # together.
                given["coupled"] = self.layer.coupled = True
            index = given.get("coupled")
            coupled.append(self.layer.coupled if index is None else index)
            return args, given

        def after(_: nn.Module, __: Any, solution: Solution) -> Solution:
            solutions.append(solution)
            return solution if value is None else replace(solution, value=value)

        hooks = [
            self.layer.register_forward_pre_hook(before, with_kwargs=True),
            self.layer.register_forward_hook(after),
        ]
        try:
            output = self.module(*self.inputs)
        finally:
            for hook in hooks:
                hook.remove()
        if len(solutions) != 1:
            raise ValueError(
                f"the equilibrium layer was called {len(solutions)} times in one call of "
                f"{type(self.module).__name__}, expected once. Pass the layer itself, with its own "
                "inputs"
            )
        return Seen(output, operands[0], coupled[0], solutions[0])

    def gradient_at(self, value: Any, scalar: Callable[[Any], Tensor]) -> list[Tensor]:
        """The gradient of scalar(output) with respect to a state z that replaces the layer's
        solution, one tensor for each of the state's."""
        state = pytree.tree_map(lambda x: x.detach().requires_grad_(), value)
        leaves: list[Tensor] = pytree.tree_leaves(state)
        with using(self.layer, Picard(max_evals=1)), torch.enable_grad():
            output = self.call(value=state).output  # what the layer solves meanwhile doesn't matter
            grads = torch.autograd.grad(scalar(output), leaves, allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]


@dataclass(frozen=True)
class Exact:
    """The patient in float64, with its solution as exact as it gets."""

    patient: Patient
    operands: tuple[Any, ...]
    solution: Solution
    solver: Solver

    @classmethod
    def of(cls, patient: Patient, found: Solution) -> Exact:
        """Solves on from `found`, with the solver in use and, should it fail, with others."""
        twin = patient.double()
        twin.layer.adjoint = Implicit(linear=GMRES(rtol=EXACT, max_evals=2000, restart=50))
        z0 = map_floats(lambda x: x.detach().double(), found.value)
        used = patient.layer.eval_solver or patient.layer.solver
        budget = max(400, used.max_evals)
        limits: dict[str, Any] = {"rtol": EXACT, "max_evals": budget}
        candidates = [
            replace(used, **limits, atol=0.0, error=None),
            Broyden(**limits, memory=50),
            NewtonKrylov(rtol=EXACT, max_evals=4 * budget),
        ]
        best: Exact | None = None
        for solver in candidates:
            twin.layer.eval_solver = solver
            try:
                with torch.no_grad():
                    seen = twin.call(z0=z0)
            except (RuntimeError, TypeError) as error:
                raise TypeError(
                    f"the copy of {type(patient.module).__name__} in float64 can't be evaluated "
                    f"({error}). Its parameters, buffers and inputs were converted; a cell that is "
                    "a plain function must take its other tensors as operands, or be a module"
                ) from error
            exact = cls(twin, seen.operands, seen.solution, solver)
            if bool((seen.solution.status == Status.CONVERGED).all()):
                return exact
            if best is None or exact.residual < best.residual:
                best = exact
        assert best is not None
        twin.layer.eval_solver = best.solver
        return best

    @property
    def residual(self) -> float:
        return float(self.solution.stats.residual.max())
