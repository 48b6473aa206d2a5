"""Layers with weights, and their exact gradients in float64: what the gradient benchmarks use."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from typing_extensions import override

import equilibria as eq


class TanhCell(nn.Module):
    """z <- tanh(z W^T + x + c) with weights W `(width, width)` and c `(width,)`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, dtype=torch.float64)

    @override
    def forward(self, z: Tensor, x: Tensor) -> Tensor:
        """z, x `(batch, width)` -> z `(batch, width)`."""
        return torch.tanh(self.linear(z) + x)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One training step: the loss is the inner product of z* with `target`.

    Attributes:
        name: of the case.
        cell, x, target: the layer, its input, and dL/dz*.
        exact: the gradient with respect to all parameters and to x, float64, flattened.
        radius: spectral radius of J at the solution, the maximum over the samples, where known.
        smallest: smallest singular value of I - J, of all samples, where known.
    """

    name: str
    cell: nn.Module
    x: Tensor
    target: Tensor
    exact: Tensor
    radius: float | None = None
    smallest: float | None = None

    def clear(self) -> None:
        """Drop all gradients."""
        for p in (*self.cell.parameters(), self.x):
            p.grad = None


def compare(case: Case) -> tuple[float, float]:
    """Compare the gradients that a backward has left in the parameters and in x with the exact one.

    Returns:
        The cosine between the two, and the length of their difference relative to the exact one's.
    """
    grads = [p.grad for p in (*case.cell.parameters(), case.x)]
    found = torch.cat([torch.zeros(0) if g is None else g.flatten().cpu() for g in grads]).double()
    exact = case.exact
    if found.numel() != exact.numel() or not bool(found.isfinite().all()):
        return float("nan"), float("inf")
    cosine = float(found @ exact / (found.norm() * exact.norm()))
    return cosine, float((found - exact).norm() / exact.norm())


def build(
    name: str,
    *,
    width: int,
    batch: int,
    scale: float = 1.0,
    radius: float | None = None,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Return a case with Gaussian weights, the same numbers for the same name.

    Args:
        name: of the case.
        width, batch: of the state.
        scale: about the spectral radius of the weights.
        radius: spectral radius of J at the solution, the maximum over the samples; the scale of the
            weights is the smallest that gives it, whatever `scale` says. Small widths only.
        device, dtype: of layer, input and target.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    cell = TanhCell(width)
    weight = cell.linear.weight
    with torch.no_grad():
        weight.copy_(normal(width, width) * (scale / width**0.5))
        cell.linear.bias.copy_(0.1 * normal(width))
    x, target = 0.5 * normal(batch, width), normal(batch, width) / batch
    found = smallest = None
    if radius is not None:
        _scale_to(radius, cell, x)
        found = _radius(cell, x)
        identity = torch.eye(width, dtype=torch.float64)
        smallest = float(torch.linalg.svdvals(identity - _jacobian(cell, x)).min())
    case = case_of(name, cell, x, target, device=device, dtype=dtype)
    return replace(case, radius=found, smallest=smallest)


def case_of(
    name: str,
    cell: nn.Module,
    x: Tensor,
    target: Tensor,
    *,
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Return the case of any layer, whose state is like its input.

    Its exact gradient is (df/dp)^T u with u = J^T u + dL/dz*, both equations solved to their end in
    float64.

    Args:
        name: of the case.
        cell, x, target: the layer, its input, and dL/dz*.
        device, dtype: of those that the case has.

    Raises:
        ArithmeticError: an equation cannot be solved.
    """
    precise, inputs, g = copy.deepcopy(cell).double(), x.detach().double(), target.double()
    z = _solve(precise, inputs).requires_grad_()
    image = precise(z, inputs.requires_grad_())
    u = _iterate(lambda u: torch.autograd.grad(image, z, u, retain_graph=True)[0] + g, g, 1e-12)
    grads = torch.autograd.grad(image, [*precise.parameters(), inputs], u)
    return Case(
        name=name,
        cell=copy.deepcopy(cell).to(device, dtype),
        x=x.detach().to(device, dtype, copy=True).requires_grad_(),
        target=target.to(device, dtype),
        exact=torch.cat([each.flatten() for each in grads]).cpu(),
    )


def _scale_to(radius: float, cell: TanhCell, x: Tensor) -> None:
    """Scale the weights so that the Jacobian at the solution has this spectral radius."""
    weight = cell.linear.weight
    direction = weight.detach().clone()

    def reaches(scale: float) -> bool:
        with torch.no_grad():
            weight.copy_(scale * direction)
        return _radius(cell, x) >= radius

    # From below: beyond, the state saturates and the radius falls again.
    high = 0.25
    while not reaches(high):
        high += 0.25
    low = high - 0.25
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if reaches(middle) else (middle, high)


def _jacobian(cell: TanhCell, x: Tensor) -> Tensor:
    """df/dz at the solution, `(batch, width, width)`."""
    return (1 - _solve(cell, x) ** 2).unsqueeze(2) * cell.linear.weight.detach()


def _radius(cell: TanhCell, x: Tensor) -> float:
    return float(torch.linalg.eigvals(_jacobian(cell, x)).abs().max())


def _solve(cell: nn.Module, x: Tensor) -> Tensor:
    return _iterate(lambda z: cell(z, x), torch.zeros_like(x), 1e-13)


@torch.no_grad()
def _iterate(f: Callable[[Tensor], Tensor], start: Tensor, rtol: float) -> Tensor:
    """z = f(z) by plain iteration, or by Anderson's where that does not get there."""
    z = start
    for _ in range(5000):
        z, before = f(z), z
        if float((z - before).norm()) <= rtol * float(z.norm()) < math.inf:
            return z
    accelerated = eq.Anderson(rtol=rtol, history=20, max_evals=5000, patience=None)
    z = eq.fixed_point(f, start, solver=accelerated).value
    if not float((f(z) - z).norm()) <= 100 * rtol * float(z.norm()):
        raise ArithmeticError("the exact gradient is unknown: an equation has not been solved")
    return z
