"""Does the answer depend on where the solve begins?"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from equilibria.nn import using
from equilibria.solve import Status
from equilibria.stability.examination import Starts, Summary
from equilibria.stability.patient import Exact
from equilibria.stability.trees import relative, rows_of

SAME = 1e-6
"""Relative residual of solves from other starts."""

APART = 1e-3
"""Relative distance from which two answers are two. One and the same answer is met to
1e-6 / (1 - spectral radius): below 1e-3 up to a radius of .999."""


def examine_starts(exact: Exact, count: int, generator: torch.Generator) -> Starts:
    """Solves from noise about zero, and compares the answers with the layer's own."""
    layer = exact.patient.layer
    with using(layer, replace(exact.solver, rtol=SAME)):
        home = layer(*exact.operands)
        reached = home.status == Status.CONVERGED
        converged, distances = [], []
        for start in range(count):
            scale = 3.0 if start % 2 else 1.0
            z0 = pytree.tree_map(lambda z, s=scale: s * _like(z, generator), home.value)
            other = layer(*exact.operands, z0=z0)
            arrived = other.status == Status.CONVERGED
            converged.append(arrived)
            rows, end = (rows_of(s.value, layer.coupled) for s in (other, home))
            distances.append(relative(rows - end, end).where(arrived & reached, math.nan))
    largest = torch.stack(distances).nan_to_num(-1).amax(0)
    largest = largest.where(largest >= 0, math.nan)
    return Starts(
        count=count,
        converged=float(torch.stack(converged).double().mean()),
        distance=Summary.of(largest),
        compared=float(largest.isfinite().double().mean()),
        apart=float((largest > APART).double().mean()),
    )


def _like(z: Tensor, generator: torch.Generator) -> Tensor:
    """Noise with each sample's root mean square."""
    noise = torch.randn(z.shape, dtype=z.dtype, generator=generator).to(z.device)
    size = z.flatten(1).square().mean(1).sqrt()
    return noise * size.reshape(-1, *(1 for _ in z.shape[1:]))
