"""Solutions that autograd knows by the equation that they satisfy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from equilibria.solve import private
from equilibria.solve.capture import capture
from equilibria.solve.function import solve_implicitly
from equilibria.solve.nonlinear import Nonlinear
from equilibria.solve.tree import Leaves


@dataclass(frozen=True)
class Found:
    """A solution, leaf by leaf; see `Solution`."""

    value: Leaves
    status: Tensor
    reason: Tensor
    evals: Tensor
    residual: Tensor
    states: list[Leaves]


def implicit(equation: Nonlinear, z: Leaves, p: Leaves) -> Found:
    """Solves, and connects the solution and the states to what f depends on."""
    found = solve(equation, z, p)
    if not (torch.is_grad_enabled() or private.transform_active()):
        return found
    everything = [*p, *equation.captured.values]
    return replace(found, states=[one_step(equation, state, everything) for state in found.states])


def solve(equation: Nonlinear, z: Leaves, p: Leaves) -> Found:
    """Solves, after a first evaluation that shows what f closes over."""
    first: Leaves = []
    transformed = private.transform_active()
    if torch.is_grad_enabled() or transformed or private.dual_level_active():
        # Tensors of their own, so that an operand that f closes over as well is found to be both.
        if transformed:
            own = [x.view_as(x) for x in p]
        else:
            own = [x.detach().requires_grad_(x.requires_grad) for x in p]
        out, equation.captured = capture(
            lambda: equation.evaluate(z, own), [*z, *own], equation.expected
        )
        first = [leaf.detach() for leaf in out]
        del out  # its graph has served, and would be held for as long as the solve takes
        p = [*p, *equation.captured.values]
    value, (status, reason, evals, residual), states = solve_implicitly(equation, z, first, p)
    return Found(value, status, reason, evals, residual, states)


def one_step(equation: Nonlinear, z: Leaves, p: Leaves) -> Leaves:
    """z with the gradient of f at z."""
    return with_gradient(z, equation.evaluate(z, p))


def with_gradient(z: Leaves, of: Leaves) -> Leaves:
    """z with the gradient of another state, where that is finite."""
    return [
        x + torch.where(torch.isfinite(y), y - y.detach(), 0.0) for x, y in zip(z, of, strict=True)
    ]
