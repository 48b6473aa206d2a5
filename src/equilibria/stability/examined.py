"""Whom the doctor sees: a module, the layer in it, its inputs; and the same in float64."""

from __future__ import annotations

import copy
import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree

from equilibria import solve
from equilibria.nn import DEQ
from equilibria.nn.frozen import module_of
from equilibria.nn.using import layers, using
from equilibria.solve import Solution, Solver

# --- trees ----------------------------------------------------------------------------------------

# States and operands of the doctor's patients, as rows and as trees.


def map_floats(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """`function` of every floating-point tensor in a tree, also inside `shared`."""

    def apply(x: Any) -> Any:
        if isinstance(x, solve.Shared):
            return solve.Shared(map_floats(function, x.value))
        return function(x) if isinstance(x, Tensor) and x.is_floating_point() else x

    return pytree.tree_map(apply, tree)


def operand_leaves(operands: tuple[Any, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Floating-point tensors with a batch axis, and those that all samples share."""
    batched: list[Tensor] = []
    shared: list[Tensor] = []
    for leaf in pytree.tree_leaves(operands):
        inside = pytree.tree_leaves(leaf.value) if isinstance(leaf, solve.Shared) else [leaf]
        target = shared if isinstance(leaf, solve.Shared) else batched
        target += [x for x in inside if isinstance(x, Tensor) and x.is_floating_point()]
    return batched, shared


def rows_of(z: Any, coupled: bool) -> Tensor:
    """All entries of each sample in one row, in float64: (samples, entries)."""
    leaves: Sequence[Tensor] = pytree.tree_leaves(z)
    samples = 1 if coupled else leaves[0].shape[0]
    return torch.cat([leaf.detach().double().reshape(samples, -1) for leaf in leaves], dim=1)


def relative(difference: Tensor, scale: Tensor) -> Tensor:
    """||difference|| / ||scale|| of each row."""
    tiny = torch.finfo(difference.dtype).tiny
    return difference.norm(dim=-1) / (scale.norm(dim=-1) + tiny)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Of each row; one where both vanish."""
    inner, sizes = (a * b).sum(-1), a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(sizes == 0, (a == b).all(-1).to(a.dtype), inner / sizes.clamp_min(1e-300))


def parameters_of(layer: DEQ) -> list[nn.Parameter]:
    """All parameters of a layer, also those of the module whose method is its cell."""
    owner = module_of(layer.cell)
    modules = [layer, *([owner] if owner is not None else [])]
    return list(dict.fromkeys(p for module in modules for p in module.parameters()))


def shares(status: Tensor) -> dict[str, float]:
    """The share of samples that ended with each status, by its name."""
    return {s.name: float((status == s).double().mean()) for s in solve.Status}


# --- peak -----------------------------------------------------------------------------------------

# The largest number of bytes that something allocates at one time.


CPU = torch.device("cpu")


def peak_bytes(step: Callable[[], object], device: torch.device = CPU) -> int:
    """Return the largest number of bytes that `step` has allocated at one time on a device."""
    gc.collect()  # memory allocated before and freed during the step would be miscounted
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    # Read when torch first profiles: two lines would be logged for each call.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    cpu = [ProfilerActivity.CPU]
    # Without acc_events some versions warn that there is only one cycle, which is all that is read.
    with profile(activities=cpu, profile_memory=True, acc_events=True) as profiler:
        step()
    # kineto_results has no underscore but no documentation either. The documented way to the same
    # numbers, export_chrome_trace, takes five times as long.
    results = cast(Any, profiler.profiler).kineto_results
    changes = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    changes.sort(key=lambda change: change[0])
    return max(accumulate((size for _, size in changes), initial=0))


# --- patient --------------------------------------------------------------------------------------


EXACT = 1e-10
"""Relative residual of what the doctor calls exact."""


@dataclass(frozen=True)
class LayerCall:
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

    def call(self, value: Any = None, leaves: bool = False, **keywords: Any) -> LayerCall:
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
        return LayerCall(output, operands[0], coupled[0], solutions[0])

    def gradient_at(self, value: Any, scalar: Callable[[Any], Tensor]) -> list[Tensor]:
        """The gradient of scalar(output) with respect to a state z that replaces the layer's
        solution, one tensor for each of the state's."""
        state = pytree.tree_map(lambda x: x.detach().requires_grad_(), value)
        leaves: list[Tensor] = pytree.tree_leaves(state)
        with using(self.layer, solve.Picard(max_evals=1)), torch.enable_grad():
            output = self.call(value=state).output  # what the layer solves meanwhile doesn't matter
            return [*torch.autograd.grad(scalar(output), leaves, materialize_grads=True)]


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
        linear = solve.GMRES(rtol=EXACT, max_evals=2000, restart=50)
        twin.layer.adjoint = solve.Implicit(linear=linear)
        z0 = map_floats(lambda x: x.detach().double(), found.value)
        used = patient.layer.eval_solver or patient.layer.solver
        budget = max(400, used.max_evals)
        limits: dict[str, Any] = {"rtol": EXACT, "max_evals": budget}
        candidates = [
            replace(used, **limits, atol=0.0, error=None),
            solve.Broyden(**limits, memory=50),
            solve.NewtonKrylov(rtol=EXACT, max_evals=4 * budget),
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
            if bool((seen.solution.status == solve.Status.CONVERGED).all()):
                return exact
            if best is None or exact.residual < best.residual:
                best = exact
        assert best is not None
        twin.layer.eval_solver = best.solver
        return best

    @property
    def residual(self) -> float:
        return float(self.solution.stats.residual.max())
