"""Layers with weights, and their exact gradients in float64: what the gradient benchmarks use."""

from __future__ import annotations

import copy
import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

__all__ = ["RADII", "WIDTHS", "Case", "Cell", "Comparison", "at_radius", "compare", "plain"]


class Cell(nn.Module):
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
        name: as `--problems` calls it.
        cell, x, target: the layer, its input, and dL/dz*.
        exact: the gradient with respect to all parameters and to x, float64, flattened.
        radius: spectral radius of J at the solution, the largest of the samples, where known.
        smallest: smallest singular value of I - J, of all samples, where known.
    """

    name: str
    cell: Cell
    x: Tensor
    target: Tensor
    exact: Tensor
    radius: float | None = None
    smallest: float | None = None


@dataclass(frozen=True)
class Comparison:
    """A gradient beside the exact one: the cosine between them, and the error's relative length."""

    cosine: float
    error: float


def compare(cell: Cell, x: Tensor, exact: Tensor) -> Comparison:
    """The gradients that a backward has left in the parameters and in x."""
    grads = [p.grad for p in (*cell.parameters(), x)]
    found = torch.cat([torch.zeros(0) if g is None else g.flatten().cpu() for g in grads]).double()
    if found.numel() != exact.numel() or not bool(found.isfinite().all()):
        return Comparison(float("nan"), float("inf"))
    cosine = float(found @ exact / (found.norm() * exact.norm()))
    return Comparison(cosine, float((found - exact).norm() / exact.norm()))


def at_radius(
    name: str, *, radius: float, width: int, batch: int, device: str, dtype: torch.dtype
) -> Case:
    """A case whose Jacobian has this spectral radius at the solution, the largest of the samples.

    The weights are Gaussian; their scale is the least that gives the radius. Exact:
    (I - J)^T u = dL/dz* solved
    densely in float64.
    """
    cell, x, target = _random(name, width, batch, scale=1.0)
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
    z = _fixed_point(cell, x)
    slope = 1 - z**2
    identity = torch.eye(width, dtype=torch.float64)
    jacobian = slope.unsqueeze(2) * weight.detach()
    u = torch.linalg.solve((identity - jacobian).transpose(1, 2), target.unsqueeze(2)).squeeze(2)
    return Case(
        name=name,
        cell=_put(cell, device, dtype),
        x=x.to(device, dtype).requires_grad_(),
        target=target.to(device, dtype),
        exact=_gradient(cell, x, z, u),
        radius=float(torch.linalg.eigvals(jacobian).abs().max()),
        smallest=float(torch.linalg.svdvals(identity - jacobian).min()),
    )


def plain(
    name: str, *, width: int, batch: int, device: str, dtype: torch.dtype, scale: float = 1.1
) -> Case:
    """A case of any width, its weights Gaussian with a spectral radius of about `scale`.

    Exact: plain iteration in float64, forward and backward, to its end.
    """
    cell, x, target = _random(name, width, batch, scale=scale)
    z = _fixed_point(cell, x)
    slope, weight = 1 - z**2, cell.linear.weight.detach()
    u = target
    for _ in range(2000):
        new = (slope * u) @ weight + target
        done = float((new - u).norm()) <= 1e-12 * float(new.norm())
        u = new
        if done:
            break
    return Case(
        name=name,
        cell=_put(cell, device, dtype),
        x=x.to(device, dtype).requires_grad_(),
        target=target.to(device, dtype),
        exact=_gradient(cell, x, z, u),
    )


def _random(name: str, width: int, batch: int, scale: float) -> tuple[Cell, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    cell = Cell(width)
    with torch.no_grad():
        cell.linear.weight.copy_(normal(width, width) * (scale / width**0.5))
        cell.linear.bias.copy_(0.1 * normal(width))
    return cell, 0.5 * normal(batch, width), normal(batch, width) / batch


def _put(cell: Cell, device: str, dtype: torch.dtype) -> Cell:
    return copy.deepcopy(cell).to(device, dtype)


@torch.no_grad()
def _fixed_point(cell: Cell, x: Tensor) -> Tensor:
    z = torch.zeros_like(x)
    for _ in range(5000):
        new = cell(z, x)
        done = float((new - z).norm()) <= 1e-13 * float(new.norm())
        z = new
        if done:
            break
    return z


@torch.no_grad()
def _radius(cell: Cell, x: Tensor) -> float:
    z = _fixed_point(cell, x)
    jacobian = (1 - z**2).unsqueeze(2) * cell.linear.weight
    return float(torch.linalg.eigvals(jacobian).abs().max())


def _gradient(cell: Cell, x: Tensor, z: Tensor, u: Tensor) -> Tensor:
    """(df/dp)^T u at z, for all parameters and for x."""
    x = x.detach().clone().requires_grad_()
    grads = torch.autograd.grad(cell(z, x), [*cell.parameters(), x], u)
    return torch.cat([g.flatten() for g in grads])


RADII: dict[str, Callable[..., Case]] = {
    f"radius-{radius}": functools.partial(at_radius, radius=radius, width=128, batch=32)
    for radius in (0.5, 0.8, 0.9, 0.95)
}
"""Cases of `bench adjoints`: name, device, dtype -> case."""

WIDTHS: dict[str, Callable[..., Case]] = {
    f"{width}x{batch}": functools.partial(plain, width=width, batch=batch, scale=scale)
    for width, batch, scale in (
        (96, 64, 0.9),
        (96, 256, 0.9),
        (256, 128, 1.0),
        (512, 64, 1.05),
        (1024, 64, 1.05),
        (2048, 64, 1.05),
    )
}
"""Cases of `bench training`: name, device, dtype -> case. Spectral radius 0.85 to 0.9, the worst
sample's: a narrow layer's samples differ more, and so its weights are smaller."""
