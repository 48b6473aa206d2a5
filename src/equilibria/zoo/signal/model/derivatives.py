"""Exact derivatives of a signal with respect to its coordinates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equilibria.nn import using
from equilibria.run.models.base import EquilibriumModel, Model
from equilibria.solve import Implicit, Solver


def gradient(
    model: Model,
    x: Tensor,
    *,
    solver: Solver | None = None,
    adjoint: Implicit | None = None,
    create_graph: bool = False,
) -> Tensor:
    """Return dPhi_k / dx_i at each coordinate, (batch, outputs, inputs).

    By the exact adjoint, whatever the model is trained with: a truncated one has another
    derivative. It is as accurate as both solves, so give tolerances where it matters:
    `gradient(model, x, solver=eq.Anderson(rtol=1e-8), adjoint=eq.Implicit(linear=eq.GMRES(rtol=
    1e-8)))`. Costs a solve, and a backward solve for each output.

    Args:
        model: a network of coordinates; an explicit one too.
        x: (batch, inputs).
        solver: of the forward; None for the model's.
        adjoint: None for the model's where that is `Implicit`, else `Implicit()`.
        create_graph: the result can be differentiated, as a loss of gradients wants it, with
            respect to the parameters and to `x`, where that requires a gradient. For derivatives
            beyond the second, apply torch.autograd.grad to it.

    Raises:
        TypeError: an adjoint that is not exact; or x is no coordinates of the model.
        ValueError: likewise.

    Source: Sitzmann et al. 2020, sec. 4.1; Bai et al. 2019, Theorem 1.
    """
    with torch.enable_grad(), using(model, solver, _exact(model, adjoint)):
        x, y = _values(model, x)
        return _each(y, x, create_graph)


def hessian(
    model: Model,
    x: Tensor,
    *,
    solver: Solver | None = None,
    adjoint: Implicit | None = None,
    create_graph: bool = False,
) -> Tensor:
    """Return d^2 Phi_k / dx_i dx_j at each coordinate, (batch, outputs, inputs, inputs).

    Costs beside the gradient two linear solves for each output and input. Arguments and errors are
    those of `gradient`.
    """
    with torch.enable_grad(), using(model, solver, _exact(model, adjoint)):
        x, y = _values(model, x)
        first = _each(y, x, True)
        rows = [_each(row, x, create_graph) for row in first.unbind(1)]
        return torch.stack(rows, dim=1)


def laplacian(
    model: Model,
    x: Tensor,
    *,
    solver: Solver | None = None,
    adjoint: Implicit | None = None,
    create_graph: bool = False,
) -> Tensor:
    """Return sum_i d^2 Phi_k / dx_i^2 at each coordinate, (batch, outputs).

    Costs and arguments are those of `hessian`, of which it is the trace.
    """
    second = hessian(model, x, solver=solver, adjoint=adjoint, create_graph=create_graph)
    return second.diagonal(dim1=2, dim2=3).sum(2)


def _exact(model: Model, adjoint: Any) -> Implicit:
    if adjoint is None:
        own = model.deq.adjoint if isinstance(model, EquilibriumModel) else None
        return own if isinstance(own, Implicit) else Implicit()
    if not isinstance(adjoint, Implicit):
        raise TypeError(
            f"adjoint: expected eq.Implicit(...), got {adjoint!r}: derivatives of the signal are "
            "those of its equilibrium, which an inexact adjoint has not"
        )
    return adjoint


def _values(model: Model, x: Any) -> tuple[Tensor, Tensor]:
    if isinstance(x, Tensor) and x.is_floating_point() and not x.requires_grad:
        x = x.detach().requires_grad_()
    return x, model(x).output


def _each(y: Tensor, x: Tensor, create_graph: bool) -> Tensor:
    """dy_k / dx_i of each sample, (batch, k, i): samples depend on their own coordinate alone."""
    found: list[Tensor] = []
    for value in y.unbind(1):
        (slope,) = torch.autograd.grad(value.sum(), x, create_graph=create_graph, retain_graph=True)
        found.append(slope)
    return torch.stack(found, dim=1)
