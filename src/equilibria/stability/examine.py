"""The doctor: measures how a trained equilibrium layer behaves on a batch."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from equilibria.nn import DEQ
from equilibria.nn.frozen import module_of
from equilibria.solve import (
    GMRES,
    Broyden,
    Implicit,
    Picard,
    Shared,
    Solution,
    Solver,
    SolveWarning,
    Status,
)
from equilibria.stability.examination import (
    Backward,
    Depth,
    DepthPoint,
    Examination,
    Forward,
    Gradient,
    Jacobian,
    Starts,
    Summary,
    Trace,
)
from equilibria.stability.findings import APART, findings
from equilibria.stability.jacobian import jacobian_norm, spectral_radius

__all__ = ["doctor"]

EVALUATIONS = (1, 2, 3, 5, 8, 12, 20, 30, 50)
"""Numbers of evaluations after which the answer is looked at."""

_EXACT = 1e-10
_SAME = 1e-6


def doctor(
    module: nn.Module,
    *inputs: Any,
    loss: Callable[[Any], Tensor] | None = None,
    correct: Callable[[Any], Tensor] | None = None,
    starts: int = 4,
    seed: int = 0,
) -> Examination:
    """Examines an equilibrium layer, alone or inside a model, on one batch.

    Everything is measured on copies in evaluation mode; `module` stays as it is. The cost is that
    of a few dozen forward passes in float64: a batch of one or two hundred samples will do.

    Args:
        module: a `DEQ`, or a module that holds one and calls it once.
        *inputs: what `module` is called with.
        loss: output of the module -> scalar, whose gradient is examined. Without one it is that of
            a random projection of the output.
        correct: output of the module -> (batch,) bool, which samples are right. Without it,
            accuracies are left out.
        starts: other starts to solve from, at least 1.
        seed: of starts, probes and the random projection.

    Returns:
        Numbers and findings. `print` it, or store `json()`.

    Raises:
        ValueError: no layer or several, a layer called more than once, no starts, or a loss that is
            no scalar.
        TypeError: the module cannot be evaluated in float64.

    Example:
        >>> examination = doctor(layer, x)
        >>> print(examination)
    """
    if starts < 1:
        raise ValueError(f"starts is {starts}: expected 1 or more")
    patient = _Patient.admit(module, inputs)
    generator = torch.Generator().manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SolveWarning)  # the findings say it
        with torch.no_grad():
            seen = patient.call(trace=True, states=EVALUATIONS)
            depth = _depth(patient, seen, correct)
        jacobian = _jacobian(patient, seen)
        exact = _Exact.of(patient, seen.solution)
        with torch.no_grad():
            apart = _starts(exact, starts, generator)
        gradient = _gradient(patient, exact, loss, seed)
    layer = patient.layer
    solver = layer.eval_solver or layer.solver
    examination = Examination(
        layer=patient.path,
        solver=repr(solver),
        adjoint=repr(layer.adjoint),
        samples=seen.solution.status.numel(),
        entries=_rows(seen.solution.value, layer.coupled).shape[1],
        forward=_forward(solver, seen.solution),
        jacobian=jacobian,
        starts=apart,
        gradient=gradient,
        depth=depth,
    )
    return replace(examination, findings=findings(examination))


# The patient -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Seen:
    """One call of a module: what came out, and what went into and came out of its layer."""

    output: Any
    operands: tuple[Any, ...]
    solution: Solution


@dataclass(frozen=True)
class _Patient:
    """A module in evaluation mode, the layer in it, and its inputs."""

    module: nn.Module
    layer: DEQ
    path: str
    inputs: tuple[Any, ...]

    @classmethod
    def admit(cls, module: nn.Module, inputs: tuple[Any, ...]) -> _Patient:
        found = [(path, m) for path, m in module.named_modules() if isinstance(m, DEQ)]
        found = [  # a layer inside the cell of another is part of that one's f
            (path, m)
            for path, m in found
            if not any(m is not other and m in set(other.modules()) for _, other in found)
        ]
        if len(found) != 1:
            paths = ", ".join(path for path, _ in found) or "none"
            raise ValueError(
                f"{type(module).__name__} should hold one equilibrium layer (eq.DEQ), found "
                f"{paths}. Pass the layer itself, with its own inputs"
            )
        path = found[0][0]
        module = copy.deepcopy(module).eval()
        layer = module.get_submodule(path)
        assert isinstance(layer, DEQ)
        return cls(module, layer, path, inputs)

    def double(self) -> _Patient:
        """A copy in float64."""
        module = copy.deepcopy(self.module).double()
        layer = module.get_submodule(self.path)
        assert isinstance(layer, DEQ)
        if (owner := module_of(layer.cell)) is not None:  # a method's module is no sub-module
            owner.double()
        return _Patient(module, layer, self.path, _map_floats(Tensor.double, self.inputs))

    def call(self, value: Any = None, leaves: bool = False, **keywords: Any) -> _Seen:
        """Calls the module, with other keywords for its layer.

        Args:
            value: what the layer is made to answer, in place of its solution.
            leaves: cut the graph before the layer, so that gradients end at its operands.
            keywords: of the layer's forward.
        """
        operands: list[tuple[Any, ...]] = []
        solutions: list[Solution] = []

        def before(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
            if leaves:
                args = _map_floats(lambda x: x.detach().requires_grad_(), args)
            operands.append(args)
            return args, given | keywords

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
        return _Seen(output, operands[0], solutions[0])


# What is measured --------------------------------------------------------------------------------


def _forward(solver: Solver, solution: Solution) -> Forward:
    stats = solution.stats
    assert stats.trace is not None
    trace = _carried(stats.trace.double().cpu())
    levels = torch.tensor([0.1, 0.5, 0.9, 1.0], dtype=torch.float64)
    p10, p50, p90, largest = torch.quantile(trace, levels, dim=1).tolist()
    return Forward(
        rtol=solver.rtol,
        max_evals=solver.max_evals,
        status=_shares(solution.status),
        evals=Summary.of(stats.evals),
        residual=Summary.of(stats.residual),
        trace=Trace(list(range(1, len(trace) + 1)), p10, p50, p90, largest),
    )


def _carried(trace: Tensor) -> Tensor:
    """A trace (evals, samples) in which a finished sample keeps its last residual."""
    rows = [trace[0].nan_to_num(math.inf)]
    for row in trace[1:]:
        rows.append(torch.where(row.isnan(), rows[-1], row))
    return torch.stack(rows)


def _shares(status: Tensor) -> dict[str, float]:
    return {s.name: float((status == s).double().mean()) for s in Status}


def _jacobian(patient: _Patient, seen: _Seen) -> Jacobian:
    layer, z = patient.layer, seen.solution.value
    radius = spectral_radius(layer.cell, z, *seen.operands, coupled=layer.coupled)
    norm = jacobian_norm(layer.cell, z, *seen.operands, coupled=layer.coupled)
    entries = _rows(z, layer.coupled).shape[1]
    return Jacobian(
        spectral_radius=Summary.of(radius),
        expanding=float((radius >= 1).double().mean()),
        norm=Summary.of(norm),
        stretch=Summary.of(norm / math.sqrt(entries)),
    )


def _depth(patient: _Patient, seen: _Seen, correct: Callable[[Any], Tensor] | None) -> Depth:
    solution, layer = seen.solution, patient.layer
    end = _rows(solution.value, layer.coupled)
    needed = int(solution.stats.evals.max())
    solver, points = layer.eval_solver, []
    try:
        # The answer is put in the layer's mouth: what it solves meanwhile doesn't matter.
        layer.eval_solver = Picard(max_evals=1)
        for evals, state in zip(EVALUATIONS, solution.states, strict=True):
            if evals > max(needed, 1):
                break
            distance = _relative(_rows(state, layer.coupled) - end, end)
            accuracy = None
            if correct is not None:
                accuracy = float(correct(patient.call(value=state).output).double().mean())
            points.append(
                DepthPoint(evals=evals, distance=Summary.of(distance).p50, accuracy=accuracy)
            )
    finally:
        layer.eval_solver = solver
    final = None if correct is None else float(correct(seen.output).double().mean())
    return Depth(points=points, accuracy=final)


@dataclass(frozen=True)
class _Exact:
    """The patient in float64, with its solution as exact as it gets."""

    patient: _Patient
    operands: tuple[Any, ...]
    solution: Solution
    solver: Solver

    @classmethod
    def of(cls, patient: _Patient, found: Solution) -> _Exact:
        """Solves on from `found`, with the solver in use and, should it fail, with Broyden's."""
        twin = patient.double()
        twin.layer.adjoint = Implicit(linear=GMRES(rtol=_EXACT, max_evals=2000, restart=50))
        z0 = _map_floats(lambda x: x.detach().double(), found.value)
        used = patient.layer.eval_solver or patient.layer.solver
        budget = max(400, used.max_evals)
        tight = replace(used, rtol=_EXACT, atol=0.0, max_evals=budget)
        candidates = [tight, Broyden(rtol=_EXACT, max_evals=budget, memory=50)]
        best: _Exact | None = None
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


def _starts(exact: _Exact, count: int, generator: torch.Generator) -> Starts:
    layer = exact.patient.layer
    tight, used = layer.eval_solver, exact.solver
    layer.eval_solver = replace(used, rtol=_SAME)
    try:
        home = layer(*exact.operands)
        reached = home.status == Status.CONVERGED
        converged, distances = [], []
        for start in range(count):
            scale = 3.0 if start % 2 else 1.0
            z0 = pytree.tree_map(lambda z, s=scale: s * _like(z, generator), home.value)
            other = layer(*exact.operands, z0=z0)
            arrived = other.status == Status.CONVERGED
            converged.append(arrived)
            rows, end = (_rows(s.value, layer.coupled) for s in (other, home))
            distances.append(_relative(rows - end, end).where(arrived & reached, math.nan))
    finally:
        layer.eval_solver = tight
    largest = torch.stack(distances).nan_to_num(-1).amax(0)
    largest = largest.where(largest >= 0, math.nan)
    return Starts(
        count=count,
        converged=float(torch.stack(converged).double().mean()),
        distance=Summary.of(largest),
        apart=float((largest > APART).double().mean()),
    )


def _like(z: Tensor, generator: torch.Generator) -> Tensor:
    """Noise with each sample's root mean square."""
    noise = torch.randn(z.shape, dtype=z.dtype, generator=generator).to(z.device)
    size = z.flatten(1).square().mean(1).sqrt()
    return noise * size.reshape(-1, *(1 for _ in z.shape[1:]))


def _gradient(
    patient: _Patient, exact: _Exact, loss: Callable[[Any], Tensor] | None, seed: int
) -> Gradient:
    layer = patient.layer
    evaluation, layer.eval_solver = layer.eval_solver, None  # gradients are training's
    try:
        used, solution = _differentiate(patient, loss, seed)
    finally:
        layer.eval_solver = evaluation
    z0 = _map_floats(lambda x: x.detach().double(), solution.value)
    right, reference = _differentiate(exact.patient, loss, seed, z0=z0)
    assert reference.adjoint is not None
    adjoint = solution.adjoint
    parameters = used.parameters.numel() > 0
    ours = used.parameters if parameters else used.operands.flatten()
    theirs = right.parameters if parameters else right.operands.flatten()
    lengths = ours.norm() / theirs.norm()
    return Gradient(
        loss="random projection" if loss is None else "loss",
        cosine=float(_cosine(ours, theirs)),
        norm_ratio=float(lengths),
        sample_cosine=float(_cosine(used.operands, right.operands).min()),
        reference=max(
            float(reference.stats.residual.max()), float(reference.adjoint.stats.residual.max())
        ),
        backward=None
        if adjoint is None
        else Backward(
            status=_shares(adjoint.status),
            evals=Summary.of(adjoint.stats.evals),
            residual=Summary.of(adjoint.stats.residual),
        ),
    )


@dataclass(frozen=True)
class _Gradients:
    """Of the layer's parameters, in one row, and of its operands, a row a sample."""

    parameters: Tensor
    operands: Tensor


def _differentiate(
    patient: _Patient, loss: Callable[[Any], Tensor] | None, seed: int, **keywords: Any
) -> tuple[_Gradients, Solution]:
    owner = module_of(patient.layer.cell)
    modules = [patient.layer, *([owner] if owner is not None else [])]
    found = dict.fromkeys(p for module in modules for p in module.parameters())
    parameters = [p.requires_grad_() for p in found]
    with torch.enable_grad():
        seen = patient.call(leaves=True, **keywords)
        scalar = _projection(seen.output, seed) if loss is None else loss(seen.output)
    if scalar.numel() != 1:
        raise ValueError(f"loss returned the shape {tuple(scalar.shape)}: expected a scalar")
    operands, shared = _operand_leaves(seen.operands)
    wanted = [*parameters, *operands, *shared]
    grads = torch.autograd.grad(scalar.sum(), wanted, allow_unused=True)
    filled = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, grads, strict=True)]
    own, others = filled[: len(parameters)], filled[len(parameters) :]
    rows = [g.flatten(1).double() for g in others[: len(operands)]]
    flat = [g.flatten().double() for g in own]
    empty = torch.zeros(0, dtype=torch.float64)
    return _Gradients(
        torch.cat(flat) if flat else empty,
        torch.cat(rows, dim=1) if rows else empty.reshape(1, 0),
    ), seen.solution


def _projection(output: Any, seed: int) -> Tensor:
    """A random linear function of all that a module returns and that has a gradient."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [x for x in pytree.tree_leaves(output) if isinstance(x, Tensor) and x.requires_grad]
    if not tensors:
        solutions = [x for x in pytree.tree_leaves(output) if isinstance(x, Solution)]
        tensors = [x for solution in solutions for x in pytree.tree_leaves(solution.value)]
    if not tensors:
        raise ValueError("the module returns no tensor with a gradient: pass loss=")
    total = torch.zeros((), dtype=tensors[0].dtype, device=tensors[0].device)
    for tensor in tensors:
        noise = torch.randn(tensor.shape, dtype=torch.float64, generator=generator)
        total = total + (tensor * noise.to(tensor)).sum()
    return total


# Trees -------------------------------------------------------------------------------------------


def _map_floats(function: Callable[[Tensor], Tensor], tree: Any) -> Any:
    """`function` of every floating-point tensor in a tree, also inside `shared`."""

    def apply(x: Any) -> Any:
        if isinstance(x, Shared):
            return Shared(_map_floats(function, x.value))
        return function(x) if isinstance(x, Tensor) and x.is_floating_point() else x

    return pytree.tree_map(apply, tree)


def _operand_leaves(operands: tuple[Any, ...]) -> tuple[list[Tensor], list[Tensor]]:
    """Floating-point tensors with a batch axis, and those that all samples share."""
    batched: list[Tensor] = []
    shared: list[Tensor] = []
    for leaf in pytree.tree_leaves(operands):
        inside = pytree.tree_leaves(leaf.value) if isinstance(leaf, Shared) else [leaf]
        target = shared if isinstance(leaf, Shared) else batched
        target += [x for x in inside if isinstance(x, Tensor) and x.is_floating_point()]
    return batched, shared


def _rows(z: Any, coupled: bool) -> Tensor:
    """All entries of each sample in one row, in float64: (samples, entries)."""
    leaves: Sequence[Tensor] = pytree.tree_leaves(z)
    samples = 1 if coupled else leaves[0].shape[0]
    return torch.cat([leaf.detach().double().reshape(samples, -1) for leaf in leaves], dim=1)


def _relative(difference: Tensor, scale: Tensor) -> Tensor:
    """||difference|| / ||scale|| of each row."""
    tiny = torch.finfo(difference.dtype).tiny
    return difference.norm(dim=-1) / (scale.norm(dim=-1) + tiny)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """Of each row; one where both vanish."""
    inner, sizes = (a * b).sum(-1), a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(sizes == 0, (a == b).all(-1).to(a.dtype), inner / sizes.clamp_min(1e-300))
