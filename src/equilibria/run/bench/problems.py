"""The fixed-point problems of the benchmark, each made anew from a seed of its own."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Map = Callable[..., Tensor]


@dataclass(frozen=True, kw_only=True)
class BenchProblem:
    """A fixed point z = f(z, *operands), solved from z0.

    Attributes:
        name: begins with its kind: linear, tanh, conv, attention or hard.
        f: z, *operands -> z; treats samples independently.
        z0: the start, `(batch, ...)`.
        operands: tensors `(batch, ...)`.
        max_evals: evaluations that every solver is given.
        drop_finished: f closes over nothing that has a batch axis.
        eager: f uncompiled, where f is compiled: what operations are counted with.
    """

    name: str
    f: Map
    z0: Tensor
    operands: tuple[Tensor, ...]
    max_evals: int
    drop_finished: bool = False
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

    def cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype).contiguous()


Made = tuple[Map, *tuple[Tensor, ...]]
"""f and its operands."""


def _linear(make: _Maker, kind: str, radius: float) -> Made:
    """z <- z A^T + b, one A for all samples, of this spectral radius."""
    width = 128
    q, r = torch.linalg.qr(make.normal(width, width))
    q = q * r.diagonal().sign()
    eigenvalues = torch.linspace(-radius, radius, width, dtype=torch.float64)
    if kind == "orthogonal":
        a = radius * q
    elif kind == "semidefinite":
        a = q @ torch.diag(torch.linspace(0, radius, width, dtype=torch.float64)) @ q.T
    elif kind == "symmetric":
        a = q @ torch.diag(eigenvalues) @ q.T
    else:
        # Schur form, as much above the diagonal as on it: a norm of about three times the radius.
        above = make.normal(width, width).triu(1) * (radius / width**0.5)
        a = q @ (torch.diag(eigenvalues) + above) @ q.T
    transposed, b = make.cast(a.T), make.cast(make.normal(64, width))
    return lambda z, b: torch.addmm(b, z, transposed), b


def _tanh(make: _Maker, width: int, batch: int, scale: float = 1.1) -> Made:
    """z <- tanh(z W + b), W Gaussian: at 1.1 a spectral radius of about 0.85 at the solution."""
    weight = make.cast(make.normal(width, width) * (scale / width**0.5))
    b = make.cast(0.5 * make.normal(batch, width))
    return lambda z, b: torch.tanh(torch.addmm(b, z, weight)), b


def _conv(make: _Maker, channels: int, size: int, batch: int) -> Made:
    """z <- tanh(K * z + b), a 3 x 3 convolution."""
    kernel = make.cast(make.normal(channels, channels, 3, 3) * (1.0 / (9 * channels) ** 0.5))
    b = make.cast(0.5 * make.normal(batch, channels, size, size))
    return lambda z, b: torch.tanh(functional.conv2d(z, kernel, padding=1) + b), b


def _attention(make: _Maker, width: int, time: int, batch: int) -> Made:
    """z <- norm(b + a attention(z)), self-attention with heads of 32."""
    into = make.cast(make.normal(width, 3 * width) * (0.8 / width**0.5))
    out = make.cast(make.normal(width, width) * (1.0 / width**0.5))
    b = make.cast(make.normal(batch, time, width))

    def f(z: Tensor, b: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(2, (-1, 32)).transpose(1, 2) for part in (z @ into).chunk(3, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return functional.layer_norm(torch.add(b, mixed @ out), (width,))

    return f, b


def _hard(make: _Maker, hard: int) -> Made:
    """z <- r tanh(z W) + b with a factor r for each sample: 0.5, or 0.98 for the hard ones."""
    width, batch = 512, 64
    weight = make.cast(make.normal(width, width) / width**0.5)
    b = make.cast(0.05 * make.normal(batch, width))
    r = torch.full((batch, 1), 0.5, dtype=torch.float64)
    r[:: batch // hard] = 0.98
    return lambda z, b, r: torch.addcmul(b, r, torch.tanh(z @ weight)), b, make.cast(r)


PROBLEMS: dict[str, tuple[int, Callable[..., Made], *tuple[Any, ...]]] = {
    **{
        f"linear-{kind}-{radius}": (evals, _linear, kind, radius)
        for kind in ("symmetric", "semidefinite", "orthogonal", "nonnormal")
        for radius, evals in ((0.5, 100), (0.9, 400), (0.99, 2000))
    },
    **{
        f"tanh-{width}x{batch}": (200, _tanh, width, batch)
        for width in (128, 512, 2048)
        for batch in (8, 64, 256)
    },
    "tanh-16x32": (200, _tanh, 16, 32, 0.7),  # so small a state that f takes next to nothing
    "conv-32x14x14": (200, _conv, 32, 14, 32),
    "conv-64x32x32": (200, _conv, 64, 32, 16),
    "attention-128x64": (200, _attention, 128, 64, 16),
    **{f"hard-{hard}-of-64": (1000, _hard, hard) for hard in (1, 8, 32)},
    # What keeps a GPU busy.
    "large-tanh-4096x1024": (200, _tanh, 4096, 1024),
    "large-conv-128x64x64": (200, _conv, 128, 64, 64),
    "large-attention-512x256": (200, _attention, 512, 256, 64),
}
"""Budget of evaluations, builder and its sizes, by name; a width comes before a batch."""


def usual(device: str) -> list[str]:
    """Return the names of the problems for a device: on a CPU, all but the large ones."""
    return [name for name in PROBLEMS if device != "cpu" or not name.startswith("large-")]


def build(name: str, *, device: str | torch.device, dtype: torch.dtype) -> BenchProblem:
    """Return the problem of that name, the same numbers at every call.

    Raises:
        KeyError: there is no such problem.
    """
    evals, make, *sizes = PROBLEMS[name]
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    f, *operands = make(_Maker(device, dtype, generator), *sizes)
    return BenchProblem(
        name=name,
        f=f,
        z0=torch.zeros_like(operands[0]),
        operands=tuple(operands),
        max_evals=evals,
        drop_finished=make is _hard,
    )


# --- modes ----------------------------------------------------------------------------------------

# How f is run: as it is, compiled, or as a CUDA graph; with or without autocast inside.


MODES = ("eager", "compiled", "graphs")


def in_mode(problem: BenchProblem, mode: str, autocast: torch.dtype | None = None) -> BenchProblem:
    """The same problem with f run in another way, for all solvers alike.

    Args:
        mode: eager; compiled, by torch.compile; graphs, f's whole batch as one CUDA graph.
        autocast: f runs in this precision inside; its result is in the state's.

    Raises:
        ValueError: an unknown mode, or a CUDA graph where there is no CUDA.
    """
    if mode not in MODES:
        raise ValueError(f"unknown mode {mode!r}; there are {', '.join(MODES)}")
    f = problem.f if autocast is None else _autocast(problem.f, problem.z0.device.type, autocast)
    if mode == "compiled":
        torch.compiler.reset()  # else the second of a kind would be compiled for any size
        compiled: Any = torch.compile(f)
        with torch.no_grad():
            compiled(problem.z0, *problem.operands)  # compiles, before anybody is measured
        return dataclasses.replace(problem, f=compiled, eager=f)
    if mode == "graphs":
        if not problem.z0.is_cuda:
            where = problem.z0.device
            raise ValueError(f"CUDA graphs need a CUDA device; the problem is on {where}")
        return dataclasses.replace(problem, f=_Graph(f, problem), eager=f)
    return dataclasses.replace(problem, f=f)


def _autocast(f: Callable[..., Tensor], device: str, dtype: torch.dtype) -> Callable[..., Tensor]:
    def inside(z: Tensor, *operands: Tensor) -> Tensor:
        # Without a cache: what it kept of a CUDA graph's recording would be gone at its replay.
        with torch.autocast(device, dtype, cache_enabled=False):
            image = f(z, *operands)
        return image.to(z.dtype)

    return inside


class _Graph:
    """f on the whole batch, recorded once and replayed; on fewer samples, f as it is.

    The image is copied out: a replay writes over what the one before returned.
    """

    def __init__(self, f: Callable[..., Tensor], problem: BenchProblem) -> None:
        self.f = f
        self.z = problem.z0.clone()
        self.operands = problem.operands
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            for _ in range(3):
                f(self.z, *self.operands)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(self.graph):
            self.image = f(self.z, *self.operands)

    def __call__(self, z: Tensor, *operands: Tensor) -> Tensor:
        same = all(a is b for a, b in zip(operands, self.operands, strict=True))
        if z.shape != self.z.shape or not same:
            return self.f(z, *operands)
        self.z.copy_(z)
        self.graph.replay()
        return self.image.clone()
