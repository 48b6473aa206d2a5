"""What the tests compare the solver with: loops and dense solves that anyone can check by eye."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import equilibria as eq


def iterate(f: Callable[..., Any], z: Any, *operands: Any, steps: int, damping: float = 1.0) -> Any:
    """z <- (1 - damping) z + damping f(z), written out, with its graph.

    papers: Bai 2022 (thesis), eq. 5.9.
    """
    for _ in range(steps):
        fz = f(z, *operands)
        z = pytree.tree_map(lambda a, b: (1 - damping) * a + damping * b, z, fz)
    return z


def vector_jacobian(f: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """df/dz over the whole batch as one matrix, (entries, entries), row = output."""
    return torch.func.jacrev(lambda v: f(v.reshape(z.shape)).reshape(-1))(z.reshape(-1))


def exact_adjoint(f: Callable[[Tensor], Tensor], z: Tensor, g: Tensor) -> Tensor:
    """u = (I - J^T)^-1 g at z by a dense solve. papers: Bai et al. 2019, eq. 10."""
    jacobian = vector_jacobian(f, z)
    eye = torch.eye(len(jacobian)).to(jacobian)
    return torch.linalg.solve(eye - jacobian.T, g.reshape(-1)).reshape(z.shape)


def gradients(value: Any, inputs: Any, **options: Any) -> list[Tensor]:
    """Gradient of a fixed, non-symmetric function of `value` with respect to `inputs`."""
    return list(torch.autograd.grad(loss(value), inputs, **options))


def loss(value: Any) -> Tensor:
    """A scalar that weighs every entry of a tree differently and is not linear in it."""
    total = torch.zeros(())
    for leaf in pytree.tree_leaves(value):
        ramp = torch.linspace(-1, 2, leaf.numel(), dtype=leaf.dtype).reshape(leaf.shape)
        total = total + (ramp * leaf + 0.5 * leaf**2).sum()
    return total


def from_zero(f: Callable[..., Any], x: Tensor, *operands: Any, **options: Any) -> eq.Solution:
    """The solution of f(z, x, *operands) from a start of zeros like x."""
    return eq.fixed_point(f, torch.zeros_like(x), x, *operands, **options)


class Counted:
    """f, with the number of calls and of samples (rows) that it saw."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        self.calls = 0
        self.rows = 0

    def __call__(self, z: Any, *operands: Any) -> Any:
        self.calls += 1
        self.rows += pytree.tree_leaves(z)[0].shape[0]
        return self.f(z, *operands)


class Clone(torch.autograd.Function):
    """The identity; a test says what passes through it backward or forward."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)


def every_solver(**limits: Any) -> dict[str, eq.Solver]:
    """Each forward solver with its options that change the path, under the same limits."""
    return {
        "Picard": eq.Picard(**limits),
        "Picard, damped": eq.Picard(**limits, damping=0.7),
        "Anderson": eq.Anderson(**limits),
        "Anderson, period 3": eq.Anderson(**limits, period=3),
        "Anderson, damped": eq.Anderson(**limits, damping=0.7),
        "Broyden": eq.Broyden(**limits),
        "Broyden, memory 5": eq.Broyden(**limits, memory=5),
        "NewtonKrylov": eq.NewtonKrylov(**limits),
        "Auto": eq.Auto(**limits),
    }


INEXACT: list[eq.Adjoint] = [
    *(eq.JacobianFree(), eq.NeumannPhantom(steps=3, damping=0.7)),
    *(eq.Phantom(steps=3, damping=0.7), eq.Unrolled(), eq.Unrolled(checkpoint=True)),
]
"""Adjoints that need no linear solver."""

TIGHT: dict[str, Any] = {"rtol": 1e-12, "max_evals": 300}
"""Options of a forward or a linear solver whose error vanishes beside that of a difference."""


def tight(*, linear: Any = None, solver: Any = None) -> dict[str, Any]:
    """Keywords of `fixed_point` for derivatives that are exact to about 1e-11 in float64."""
    return {
        "solver": solver or eq.Anderson(**TIGHT),
        "adjoint": eq.Implicit(linear=linear or eq.GMRES(**TIGHT)),
        "throw": True,
    }
