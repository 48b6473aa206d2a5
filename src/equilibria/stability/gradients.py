"""The gradient that training uses against the exact one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.nn import using
from equilibria.solve import LOOSEST, Broyden, Implicit, Solution, Status, fixed_point
from equilibria.stability.derivative_check import find_cuts
from equilibria.stability.examination import BackwardSolves, Bound, Gradient, Summary
from equilibria.stability.examined import (
    Exact,
    Patient,
    cosine,
    map_floats,
    operand_leaves,
    parameters_of,
    rows_of,
    shares,
)
from equilibria.stability.jacobian import JacobianOperator

# --- bound ----------------------------------------------------------------------------------------

# How wrong the tolerances in use may make a gradient: (adjoint + L forward) / sigma_min(I - J).


_SOLVER = Broyden(rtol=1e-3, max_evals=300, patience=60, memory=60)


def smallest_singular_value(
    jacobian: JacobianOperator, generator: torch.Generator, rounds: int = 5
) -> Tensor:
    """Estimates sigma_min(I - J) of each sample, (samples,), from above; NaN where a solve failed.

    Inverse iteration on (I - J)^T (I - J): each round solves two systems, by Broyden's method on
    v -> J v + b. The error falls by (sigma_min / the next singular value)^4 in a round.
    """
    x = _unit(jacobian.noise(generator))
    reached = torch.ones(len(x), dtype=torch.bool, device=x.device)
    size = torch.ones(len(x), dtype=x.dtype, device=x.device)
    for _ in range(rounds):
        for product in (jacobian.apply_transpose, jacobian.direct):
            rows, converged = _solve(product, x)
            reached = reached & converged
            size = torch.linalg.vector_norm(rows, dim=1)
            x = _unit(rows)
    # Each solve multiplies by at most 1 / sigma_min, and by just that in the end.
    return torch.where(reached & size.isfinite(), 1 / size, math.nan)


def _solve(product: Callable[[Tensor], Tensor], b: Tensor) -> tuple[Tensor, Tensor]:
    """(I - A)^-1 b for each row, A v = product(v), and whether it was found."""
    with torch.no_grad():
        sol = fixed_point(lambda v: product(v) + b, torch.zeros_like(b), solver=_SOLVER)
    return sol.value, sol.status == Status.CONVERGED


def bound_error(
    patient: Patient,
    exact: Exact,
    used: Solution,
    reference: Solution,
    scalar: Callable[[Any], Tensor],
    generator: torch.Generator,
) -> Bound | None:
    """Estimates the bound on the adjoint's error, and measures the error.

    Args:
        patient: as it trains.
        exact: the same in float64.
        used: training's solution, after its backward.
        reference: the exact one, after its backward.
        scalar: output of the module -> what was differentiated.
        generator: of the start of an iteration.

    Returns:
        None where the adjoint solves nothing, or no sample converged in all solves.
    """
    adjoint = patient.layer.adjoint
    if not isinstance(adjoint, Implicit) or used.adjoint is None or reference.adjoint is None:
        return None
    coupled = patient.layer.coupled
    good = torch.stack([s.flatten() == Status.CONVERGED for s in _statuses(used, reference)]).all(0)
    if not bool(good.any()):
        return None
    there, here = reference.value, pytree.tree_map(lambda x: x.detach().double(), used.value)
    u = rows_of(reference.adjoint.value, coupled)
    found = rows_of(used.adjoint.value, coupled)
    lengths = torch.linalg.vector_norm(u, dim=1)
    moved = _field(exact, here, u, scalar) - _field(exact, there, u, scalar)
    left = used.stats.residual.double()
    lipschitz = torch.linalg.vector_norm(moved, dim=1) / lengths / left
    lipschitz = torch.where(left > 0, lipschitz, 0)
    cell, operands = exact.patient.layer.cell, exact.operands
    at = JacobianOperator(cell, there, operands, coupled)
    sigma = smallest_singular_value(at, generator)
    forward, backward = patient.layer.solver.finest, torch.full_like(left, adjoint.finest)
    if adjoint.follow is not None:
        reached = (adjoint.follow * left).clamp_max(LOOSEST)
        backward = torch.maximum(backward, reached)
    error = (backward + lipschitz * forward) / sigma
    measured = torch.linalg.vector_norm(found - u, dim=1) / lengths
    masked = [torch.where(good, x, math.nan) for x in (sigma, lipschitz, error, measured)]
    return Bound(
        forward=forward,
        adjoint=float(backward[good].mean()),
        sigma_min=Summary.of(masked[0]),
        lipschitz=Summary.of(masked[1]),
        error=Summary.of(masked[2]),
        measured=Summary.of(masked[3]),
    )


def _statuses(used: Solution, reference: Solution) -> list[Tensor]:
    assert used.adjoint is not None and reference.adjoint is not None
    return [used.status, used.adjoint.status, reference.status, reference.adjoint.status]


def _field(exact: Exact, z: Any, u: Tensor, scalar: Callable[[Any], Tensor]) -> Tensor:
    """h(z) = J(z)^T u + dL/dz, in rows: whose zero minus u is the adjoint."""
    layer = exact.patient.layer
    jacobian = JacobianOperator(layer.cell, z, exact.operands, layer.coupled)
    own = exact.patient.gradient_at(z, scalar)
    return jacobian.apply_transpose(u) + rows_of(own, layer.coupled)


def _unit(rows: Tensor) -> Tensor:
    return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_min(1e-300)


# --- gradients ------------------------------------------------------------------------------------


Loss = Callable[[Any], Tensor]

Answer = Callable[[Any], Any] | None
"""Output of a module -> the tensors in it that the loss is of, such as logits; None for all."""

SMALL = 1e-3
"""Share of the largest sample's gradient below which that of another counts for nothing; and of an
ordinary gradient, below which that of the loss may have vanished."""


def examine_gradient(
    patient: Patient,
    exact: Exact,
    found: Solution,
    loss: Loss | None,
    answer: Answer,
    seed: int,
    generator: torch.Generator,
) -> Gradient:
    """Compares training's gradient with the exact one, and bounds its error."""
    layer = patient.layer
    loss, vanished = unless_vanished(loss, answer, patient, exact, found, seed)
    with using(layer, layer.solver):  # gradients are training's
        used, solution = differentiate(patient, loss, seed)
    z0 = map_floats(lambda x: x.detach().double(), solution.value)
    right, reference = differentiate(exact.patient, loss, seed, z0=z0)
    adjoint = solution.adjoint
    return Gradient(
        loss="random projection" if loss is None or vanished is not None else "loss",
        vanished=vanished,
        of="parameters" if used.parameters.numel() else "inputs",
        cuts=find_cuts(exact, seed),
        cosine=float(cosine(used.flat, right.flat)),
        norm_ratio=ratio_of(used.flat, right.flat),
        sample_cosine=used.worst(right),
        reference=residual_left(reference),
        backward=None
        if adjoint is None
        else BackwardSolves(
            status=shares(adjoint.status),
            evals=Summary.of(adjoint.stats.evals),
            residual=Summary.of(adjoint.stats.residual),
        ),
        bound=bound_error(
            patient,
            exact,
            solution,
            reference,
            lambda output: scalar_of(output, loss, seed),
            generator,
        ),
    )


@dataclass(frozen=True)
class Gradients:
    """Of the layer's parameters, in one row, and of its operands, whose rows are as many as the
    state's; `coupled` says which of these are one sample, as in `LayerCall`."""

    parameters: Tensor
    operands: Tensor
    coupled: bool | Tensor

    @property
    def flat(self) -> Tensor:
        """Of the parameters; of the operands, where there are none."""
        return self.parameters if self.parameters.numel() else self.operands.flatten()

    def cosines(self, other: Gradients) -> Tensor:
        """`(samples,)` with others of the same batch, of the operands' gradients."""
        a, b = self.operands, other.operands
        if self.coupled is False:
            return cosine(a, b)
        if self.coupled is True:
            return cosine(a.reshape(1, -1), b.reshape(1, -1))
        samples = [torch.nonzero(self.coupled == k)[:, 0] for k in self.coupled.unique()]
        return torch.stack([cosine(a[rows].flatten(), b[rows].flatten()) for rows in samples])

    def worst(self, exact: Gradients) -> float:
        """The smallest of `cosines`, over the samples that have a gradient to speak of."""
        lengths = exact.operands.norm(dim=1) if self.coupled is False else None
        found = self.cosines(exact)
        if lengths is not None:
            found = found[lengths >= SMALL * lengths.max()]
        return float(found.min())


def residual_left(exact: Solution) -> float:
    """The largest relative residual behind an exact gradient, forward and adjoint."""
    assert exact.adjoint is not None
    return max(float(each.stats.residual.max()) for each in (exact, exact.adjoint))


def ratio_of(ours: Tensor, theirs: Tensor) -> float:
    """Length over length; 1 where both are the same, be they 0."""
    return 1.0 if torch.equal(ours, theirs) else float(ours.norm() / theirs.norm())


def unless_vanished(
    loss: Loss | None, answer: Answer, patient: Patient, exact: Exact, found: Solution, seed: int
) -> tuple[Loss | None, float | None]:
    """The loss, and None; or a random projection of the answer, and the norm of dL/dz*.

    The gradient of the loss has vanished where it is a thousandth of what one of order 1 in each
    output would be, and rounding and the tolerance of the solver decide its direction or its
    length before any adjoint is asked: dL/dz at the solution in use, in its own precision, is not
    that at the exact one. So it is of a classifier that is sure of all samples.
    """
    if loss is None:
        return None, None

    def project(output: Any) -> Tensor:
        return projection(output if answer is None else answer(output), seed)

    def flat(whose: Patient, value: Any, of: Loss) -> Tensor:
        found = whose.gradient_at(value, lambda output: scalar_of(output, of, seed))
        return torch.cat([x.flatten().double() for x in found])

    used = flat(patient, found.value, loss)
    right = flat(exact.patient, exact.solution.value, loss)
    ordinary = flat(exact.patient, exact.solution.value, project)
    samples = found.status.numel()  # the loss may be a mean over them
    small = float(right.norm()) * samples < SMALL * float(ordinary.norm())
    same = float(cosine(used, right)) >= 0.99 and abs(float(used.norm() / right.norm()) - 1) <= 0.05
    return (project, float(right.norm())) if small and not same else (loss, None)


def differentiate(
    patient: Patient,
    loss: Loss | None,
    seed: int,
    between: Callable[[], None] = lambda: None,
    **keywords: Any,
) -> tuple[Gradients, Solution]:
    """The gradients of a patient's loss, and the solution that they were taken at.

    Args:
        between: called after the forward and before the backward.
        keywords: of the layer's forward.
    """
    parameters = [p.requires_grad_() for p in parameters_of(patient.layer)]
    with torch.enable_grad():
        seen = patient.call(leaves=True, **keywords)
        scalar = scalar_of(seen.output, loss, seed)
    operands, shared = operand_leaves(seen.operands)
    between()
    wanted = [*parameters, *operands, *shared]
    grads = torch.autograd.grad(scalar, wanted, materialize_grads=True)
    own, others = grads[: len(parameters)], grads[len(parameters) :]
    rows = [g.flatten(1).double() for g in others[: len(operands)]]
    flat = [g.flatten().double() for g in own]
    empty = torch.zeros(0, dtype=torch.float64)
    return Gradients(
        torch.cat(flat) if flat else empty,
        torch.cat(rows, dim=1) if rows else empty.reshape(1, 0),
        seen.coupled,
    ), seen.solution


def scalar_of(output: Any, loss: Loss | None, seed: int) -> Tensor:
    """What is differentiated: the loss of a module's output, or a random projection."""
    scalar = projection(output, seed) if loss is None else loss(output)
    if scalar.numel() != 1:
        raise ValueError(f"loss returned the shape {tuple(scalar.shape)}: expected a scalar")
    return scalar.sum()


def projection(output: Any, seed: int) -> Tensor:
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
