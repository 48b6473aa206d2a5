"""The gradient that training uses against the exact one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.nn import using
from equilibria.nn.frozen import module_of
from equilibria.solve import Solution
from equilibria.stability.bound import bound_error
from equilibria.stability.cuts import find_cuts
from equilibria.stability.examination import Backward, Gradient, Summary
from equilibria.stability.patient import Exact, Patient
from equilibria.stability.trees import cosine, map_floats, operand_leaves, shares

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
    assert reference.adjoint is not None
    adjoint = solution.adjoint
    parameters = used.parameters.numel() > 0
    ours = used.parameters if parameters else used.operands.flatten()
    theirs = right.parameters if parameters else right.operands.flatten()
    return Gradient(
        loss="random projection" if loss is None or vanished is not None else "loss",
        vanished=vanished,
        of="parameters" if parameters else "inputs",
        cuts=find_cuts(exact, seed),
        cosine=float(cosine(ours, theirs)),
        norm_ratio=ratio_of(ours, theirs),
        sample_cosine=used.worst(right),
        reference=max(
            float(reference.stats.residual.max()), float(reference.adjoint.stats.residual.max())
        ),
        backward=None
        if adjoint is None
        else Backward(
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
    state's; `coupled` says which of these are one sample, as in `Seen`."""

    parameters: Tensor
    operands: Tensor
    coupled: bool | Tensor

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

    def projected(output: Any) -> Tensor:
        return projection(output if answer is None else answer(output), seed)

    def flat(whose: Patient, value: Any, of: Loss) -> Tensor:
        found = whose.gradient_at(value, lambda output: scalar_of(output, of, seed))
        return torch.cat([x.flatten().double() for x in found])

    used = flat(patient, found.value, loss)
    right = flat(exact.patient, exact.solution.value, loss)
    ordinary = flat(exact.patient, exact.solution.value, projected)
    samples = found.status.numel()  # the loss may be a mean over them
    small = float(right.norm()) * samples < SMALL * float(ordinary.norm())
    same = float(cosine(used, right)) >= 0.99 and abs(float(used.norm() / right.norm()) - 1) <= 0.05
    return (projected, float(right.norm())) if small and not same else (loss, None)


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
    owner = module_of(patient.layer.cell)
    modules = [patient.layer, *([owner] if owner is not None else [])]
    found = dict.fromkeys(p for module in modules for p in module.parameters())
    parameters = [p.requires_grad_() for p in found]
    with torch.enable_grad():
        seen = patient.call(leaves=True, **keywords)
        scalar = scalar_of(seen.output, loss, seed)
    operands, shared = operand_leaves(seen.operands)
    wanted = [*parameters, *operands, *shared]
    between()
    grads = torch.autograd.grad(scalar, wanted, allow_unused=True)
    filled = [torch.zeros_like(x) if g is None else g for x, g in zip(wanted, grads, strict=True)]
    own, others = filled[: len(parameters)], filled[len(parameters) :]
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
