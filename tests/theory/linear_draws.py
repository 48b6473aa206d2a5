"""Linear networks drawn at random, and what is measured of them."""

from __future__ import annotations

import functools
import math

import torch

from equilibria.nn.init import fill

WIDTH = 240


def even_disk(count, generator=None):
    """Eigenvalues that fill the disk of radius sqrt(2) more evenly than draws would."""
    half = torch.arange(count // 2, dtype=torch.float64)
    golden = (math.sqrt(5) - 1) / 2
    values = torch.polar((4 * (half + 0.5) / count).sqrt(), math.pi * (golden * (half + 0.5) % 1))
    return torch.cat([values, values.conj()])


def weights(ensemble, V, width=WIDTH, seed=0):
    """Members of an ensemble, (width, width) in float64, without end."""
    generator = torch.Generator().manual_seed(seed)
    options = {"spectrum": even_disk} if ensemble == "normal" else {}
    while True:
        w = torch.empty(width, width, dtype=torch.float64)
        fill(w, ensemble, math.sqrt(V), generator=generator, **options)
        yield w


@functools.cache
def tied(ensemble, V, draws=12, width=WIDTH):
    """(I - W)^-1 for each draw."""
    identity = torch.eye(width, dtype=torch.float64)
    drawn = weights(ensemble, V, width)
    return [torch.linalg.inv(identity - next(drawn)) for _ in range(draws)]


@functools.cache
def untied(ensemble, V, draws=8, width=WIDTH):
    """M <- I + W M, a new W each step: states that are some steps apart, after as many as settle.

    A state has forgotten nine tenths of the one before it.
    """
    apart = math.ceil(math.log(0.1) / math.log(V))
    settled = math.ceil(math.log(1e-4) / math.log(V))
    drawn, identity = weights(ensemble, V, width), torch.eye(width, dtype=torch.float64)
    m, kept = identity, []
    for step in range(settled + draws * apart):
        m = identity + next(drawn) @ m
        if step >= settled and (step - settled) % apart == 0:
            kept.append(m)
    return kept


def second(m):
    """tr M^T M."""
    return float(m.square().sum()) / len(m)


def length(m):
    """2 tr (M^T M)^2."""
    return 2 * second(m.mT @ m)


def middle(values):
    return float(torch.tensor(values, dtype=torch.float64).median())
