"""Small networks of coordinates."""

from typing import Any

import torch

import equilibria as eq

IMPLICIT = {
    "fourier": ("imfn", {"filter": "fourier"}),
    "gabor": ("imfn", {"filter": "gabor"}),
    "sine": ("isiren", {}),
}
EXPLICIT = {
    "fourier": ("mfn", {"filter": "fourier"}),
    "gabor": ("mfn", {"filter": "gabor"}),
    "sine": ("siren-injected", {}),
}
TIGHT = {"solver": eq.Anderson(period=3, rtol=1e-12, max_evals=400)}
EXACT = {**TIGHT, "adjoint": eq.Implicit(linear=eq.GMRES(rtol=1e-12))}


def build(kind, *, explicit=False, seed=0, **changes) -> Any:
    """A network 8 wide in float64, of frequencies at which finite differences can be taken."""
    name, fields = (EXPLICIT if explicit else IMPLICIT)[kind]
    torch.manual_seed(seed)
    return eq.models.create(name, **{"width": 8, "scale": 4.0, **fields, **changes}).double()


def points(count=5, inputs=2, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, inputs, generator=generator, dtype=torch.float64) * 2 - 1
