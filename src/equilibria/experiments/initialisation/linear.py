"""Linear networks drawn at random: second moment and length variance of each draw, exactly.

Traces are taken in full, so that what differs from the theory is the network's size and the draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from equilibria.nn.init import Ensemble, fill
from equilibria.nn.init.normal import disk
from equilibria.theory import critical_V

__all__ = ["Pair", "spaced", "tied", "untied"]

Pair = tuple[float, float]
"""E[z* . z*] / (x . x) and N sigma^2, the length variance at input variance 1."""

SETTLED, REMEMBERED = 1e-4, 0.15
"""What the start may still count for in networks with untied weights, and one state in the next."""


def tied(ensemble: Ensemble, width: int, deltas: Sequence[float], seed: int) -> list[Pair]:
    """Draw one W and return, at each distance delta = 1 - V / V_c, the two traces.

    The eigenvalues are enough wherever W is normal. For a Gaussian W, B = (I - W)^T (I - W) is
    inverted at each V: tr B^-1 and 2 tr B^-2.

    Args:
        ensemble: of W.
        width: units, N.
        deltas: above 0, below 1.
        seed: of the draw.
    """
    generator = torch.Generator().manual_seed(seed)
    scales = [critical_V(ensemble) * (1 - delta) for delta in deltas]
    if ensemble == "gaussian":
        return list(_by_inverse(_weight(ensemble, 1.0, width, generator), scales))
    if ensemble == "normal":
        values = disk(width, generator)
        return [_of_squares((1 - math.sqrt(V) * values).abs() ** 2) for V in scales]
    w = _weight(ensemble, 1.0, width, generator)
    if ensemble == "orthogonal":  # |1 - r e^(ia)|^2 = 1 + r^2 - 2 r cos a
        cosines = torch.linalg.eigvalsh((w + w.mT) / 2)
        return [_of_squares(1 + V - 2 * math.sqrt(V) * cosines) for V in scales]
    if ensemble == "antisymmetric":
        squares = torch.linalg.eigvalsh(w.mT @ w)
        return [_of_squares(1 + V * squares) for V in scales]
    values = torch.linalg.eigvalsh(w)
    return [_of_squares((1 - math.sqrt(V) * values) ** 2) for V in scales]


def untied(ensemble: Ensemble, width: int, delta: float, draws: int, seed: int) -> Iterator[Pair]:
    """Return the two traces for states of M <- I + W M, a new W each step.

    They are so far apart in time that V^steps is below `REMEMBERED`, and begin where it is below
    `SETTLED`: a step leaves V of what the one before it has deviated by.

    Args:
        ensemble: of each W.
        width: units, N.
        delta: 1 - V, above 0, below 1.
        draws: number of states.
        seed: of all draws.
    """
    generator = torch.Generator().manual_seed(seed)
    V = 1 - delta
    settled, apart = spaced(delta)
    m = torch.eye(width, dtype=torch.float64)
    for step in range(settled + apart * (draws - 1) + 1):
        m = _weight(ensemble, V, width, generator) @ m
        m.diagonal().add_(1)
        if step >= settled and (step - settled) % apart == 0:
            yield _traces(m.mT @ m)


def spaced(delta: float) -> tuple[int, int]:
    """Return after how many steps an untied network has settled, and how many lie between states.

    Args:
        delta: 1 - V.
    """
    rate = math.log1p(-delta)
    return math.ceil(math.log(SETTLED) / rate), math.ceil(math.log(REMEMBERED) / rate)


def _weight(ensemble: Ensemble, V: float, width: int, generator: torch.Generator) -> Tensor:
    w = torch.empty(width, width, dtype=torch.float64)
    fill(w, ensemble, math.sqrt(V), generator=generator)
    return w


def _by_inverse(w: Tensor, scales: Sequence[float]) -> Iterator[Pair]:
    both, product = w + w.mT, w.mT @ w
    for V in scales:
        gram = V * product - math.sqrt(V) * both
        gram.diagonal().add_(1)
        yield _traces(torch.cholesky_inverse(torch.linalg.cholesky(gram)))


def _traces(gram: Tensor) -> Pair:
    """tr and 2 tr of the square of a symmetric matrix."""
    return float(gram.diagonal().mean()), 2 * float(gram.square().sum()) / len(gram)


def _of_squares(distances: Tensor) -> Pair:
    """The same from the |1 - lambda|^2 of a normal W."""
    return float((1 / distances).mean()), 2 * float((1 / distances.square()).mean())
