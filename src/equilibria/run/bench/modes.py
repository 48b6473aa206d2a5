"""How f is run: as it is, compiled, or as a CUDA graph; with or without autocast inside."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from equilibria.run.bench.problems import Problem

__all__ = ["MODES", "in_mode"]

MODES = ("eager", "compiled", "graphs")


def in_mode(problem: Problem, mode: str, autocast: torch.dtype | None = None) -> Problem:
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

    def __init__(self, f: Callable[..., Tensor], problem: Problem) -> None:
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
