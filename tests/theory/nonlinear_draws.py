"""Fixed points of wide non-linear networks, found by damped iteration: what theory is tested on."""

import functools

import torch

from equilibria.nn.init import fill
from equilibria.theory import as_activation

WIDTH, DRAWS, INPUTS = 500, 3, 6

DAMPING = {"gaussian": 1.0, "orthogonal": 1.0, "goe": 0.8, "antisymmetric": 0.2, "normal": 1.0}
"""Antisymmetric weights have a fixed point at any scale, and plain iteration leaves it."""


@functools.cache
def matrix(ensemble, seed, width=WIDTH):
    whole = torch.empty(width, width, dtype=torch.float64)
    fill(whole, ensemble, 1.0, generator=torch.Generator().manual_seed(seed))
    return whole


def inputs(mean, seed, count=INPUTS, width=WIDTH):
    """Gaussian inputs of exactly this mean and variance 1, (count, width)."""
    generator = torch.Generator().manual_seed(100 + seed)
    x = torch.randn(count, width, generator=generator, dtype=torch.float64)
    x = x - x.mean(1, keepdim=True)
    return x / x.square().mean(1, keepdim=True).sqrt() + mean


def settle(activation, W, x, injection, damping):
    """h and z at the fixed point, (count, width) each."""
    phi = as_activation(activation)
    z = torch.zeros_like(x)
    for _ in range(1000):
        h = z @ W.mT + (x if injection == "inside" else 0)
        f = phi(h) + (x if injection == "outside" else 0)
        if float((f - z).norm()) < 1e-8 * float(f.norm()):
            return h, z
        z = (1 - damping) * z + damping * f
    raise AssertionError("no fixed point was found")


def samples(activation, ensemble, scale, injection, mean):
    """h and z of all draws and inputs, (DRAWS * INPUTS, WIDTH) each."""
    found = [
        settle(
            activation, scale * matrix(ensemble, seed), inputs(mean, seed), injection,
            DAMPING[ensemble],
        )
        for seed in range(DRAWS)
    ]  # fmt: skip
    return tuple(torch.cat(parts) for parts in zip(*found, strict=True))
