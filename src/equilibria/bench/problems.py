"""The fixed-point problems of the benchmark, each made anew from a seed of its own."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["PROBLEMS", "Problem", "build", "usual"]

Map = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """A fixed point z = f(z, *operands), solved from z0.

    Attributes:
        name: of the problem.
        kind: linear, tanh, conv, attention or hard.
        f: z, *operands -> z; treats samples independently.
        z0: the start, `(batch, ...)`.
        operands: tensors `(batch, ...)`.
        max_evals: evaluations that every solver is given.
        per_sample: f closes over nothing that has a batch axis.
        eager: f uncompiled, where f is compiled: what operations are counted with.
    """

    name: str
    kind: str
    f: Map
    z0: Tensor
    operands: tuple[Tensor, ...]
    max_evals: int
    per_sample: bool = False
    eager: Map | None = None

    def image(self, z: Tensor) -> Tensor:
        """Return f(z)."""
        return self.f(z, *self.operands)


@dataclass(frozen=True)
class _Maker:
    """Random tensors in float64, and where and in what dtype the problem is solved."""

    device: str | torch.device
    dtype: torch.dtype
    generator: torch.Generator

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def orthogonal(self, width: int) -> Tensor:
        q, r = torch.linalg.qr(self.normal(width, width))
        return q * r.diagonal().sign()

    def put(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype).contiguous()


# --- linear maps: z <- z A^T + b, one A for all samples ------------------------------------------

WIDTH, BATCH = 128, 64
RADII = {0.5: 100, 0.9: 400, 0.99: 2000}  # budget of evaluations at each radius


def _matrix(make: _Maker, kind: str, radius: float) -> Tensor:
    """A `(WIDTH, WIDTH)` matrix whose spectral radius is `radius`."""
    q = make.orthogonal(WIDTH)
    if kind == "orthogonal":
        return radius * q
    if kind == "semidefinite":
        return q @ torch.diag(torch.linspace(0, radius, WIDTH, dtype=torch.float64)) @ q.T
    eigenvalues = torch.linspace(-radius, radius, WIDTH, dtype=torch.float64)
    if kind == "symmetric":
        return q @ torch.diag(eigenvalues) @ q.T
    # Schur form with as much above the diagonal as on it: a norm of about three times the radius.
    above = make.normal(WIDTH, WIDTH).triu(1) * (radius / WIDTH**0.5)
    return q @ (torch.diag(eigenvalues) + above) @ q.T


def _linear(make: _Maker, name: str, kind: str, radius: float) -> Problem:
    transposed = make.put(_matrix(make, kind, radius).T)
    b = make.put(make.normal(BATCH, WIDTH))

    def f(z: Tensor, b: Tensor) -> Tensor:
        return torch.addmm(b, z, transposed)

    return _from_zero(name, "linear", f, b, max_evals=RADII[radius])


def _from_zero(name: str, kind: str, f: Map, *operands: Tensor, **options: Any) -> Problem:
    """A problem that starts from zeros like its first operand."""
    z0 = torch.zeros_like(operands[0])
    return Problem(name=name, kind=kind, f=f, z0=z0, operands=operands, **options)


# --- layers --------------------------------------------------------------------------------------


def _tanh(make: _Maker, name: str, width: int, batch: int) -> Problem:
    """z <- tanh(z W + b), W Gaussian: a spectral radius of about 0.85 at the solution."""
    weight = make.put(make.normal(width, width) * (1.1 / width**0.5))
    b = make.put(0.5 * make.normal(batch, width))

    def f(z: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(torch.addmm(b, z, weight))

    return _from_zero(name, "tanh", f, b, max_evals=200)


def _conv(make: _Maker, name: str, channels: int, size: int, batch: int) -> Problem:
    """z <- tanh(K * z + b), a 3 x 3 convolution."""
    kernel = make.put(make.normal(channels, channels, 3, 3) * (1.0 / (9 * channels) ** 0.5))
    b = make.put(0.5 * make.normal(batch, channels, size, size))

    def f(z: Tensor, b: Tensor) -> Tensor:
        return torch.tanh(functional.conv2d(z, kernel, padding=1) + b)

    return _from_zero(name, "conv", f, b, max_evals=200)


def _attention(make: _Maker, name: str, width: int, time: int, batch: int) -> Problem:
    """z <- norm(b + a attention(z)), self-attention with heads of 32."""
    heads = width // 32
    into = make.put(make.normal(width, 3 * width) * (0.8 / width**0.5))
    out = make.put(make.normal(width, width) * (1.0 / width**0.5))
    b = make.put(make.normal(batch, time, width))

    def f(z: Tensor, b: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(2, (heads, 32)).transpose(1, 2) for part in (z @ into).chunk(3, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return functional.layer_norm(torch.add(b, mixed @ out), (width,))

    return _from_zero(name, "attention", f, b, max_evals=200)


# --- a batch in which some samples are hard ------------------------------------------------------


def _hard(make: _Maker, name: str, hard: int) -> Problem:
    """z <- r tanh(z W) + b with a factor r for each sample: 0.5, or 0.98 for the hard ones."""
    width, batch = 512, 64
    weight = make.put(make.normal(width, width) / width**0.5)
    b = make.put(0.05 * make.normal(batch, width))
    r = torch.full((batch, 1), 0.5, dtype=torch.float64)
    r[:: batch // hard] = 0.98
    r = make.put(r)

    def f(z: Tensor, b: Tensor, r: Tensor) -> Tensor:
        return torch.addcmul(b, r, torch.tanh(z @ weight))

    return _from_zero(name, "hard", f, b, r, max_evals=1000, per_sample=True)


Builder = Callable[[_Maker, str], Problem]

PROBLEMS: dict[str, Builder] = {
    **{
        f"linear-{kind}-{radius}": functools.partial(_linear, kind=kind, radius=radius)
        for kind in ("symmetric", "semidefinite", "orthogonal", "nonnormal")
        for radius in RADII
    },
    **{
        f"tanh-{width}x{batch}": functools.partial(_tanh, width=width, batch=batch)
        for width in (128, 512, 2048)
        for batch in (8, 64, 256)
    },
    "conv-32x14x14": functools.partial(_conv, channels=32, size=14, batch=32),
    "conv-64x32x32": functools.partial(_conv, channels=64, size=32, batch=16),
    "attention-128x64": functools.partial(_attention, width=128, time=64, batch=16),
    **{f"hard-{hard}-of-64": functools.partial(_hard, hard=hard) for hard in (1, 8, 32)},
    # What keeps a GPU busy.
    "large-tanh-4096x1024": functools.partial(_tanh, width=4096, batch=1024),
    "large-conv-128x64x64": functools.partial(_conv, channels=128, size=64, batch=64),
    "large-attention-512x256": functools.partial(_attention, width=512, time=256, batch=64),
}
"""Builder by name; a width comes before a batch."""


def usual(device: str) -> list[str]:
    """Return the names of the problems for a device: on a CPU, all but the large ones."""
    return [name for name in PROBLEMS if device != "cpu" or not name.startswith("large-")]


def build(name: str, *, device: str | torch.device, dtype: torch.dtype) -> Problem:
    """Return the problem of that name, the same numbers at every call.

    Raises:
        KeyError: there is no such problem.
    """
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return PROBLEMS[name](_Maker(device, dtype, generator), name)
