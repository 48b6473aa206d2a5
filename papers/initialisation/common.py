"""Weight ensembles: what they are called, the colours that they have in charts, a member drawn."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from equilibria.nn.init import Ensemble, fill
from equilibria.run.studies.views import Lines

NAMES: Mapping[Ensemble, str] = {
    "gaussian": "Gaussian",
    "orthogonal": "orthogonal",
    "goe": "GOE",
    "antisymmetric": "antisymmetric",
    "normal": "normal",
}
"""In the order of the tables; the paper calls the first "random"."""

COLORS: Mapping[Ensemble, int] = {ensemble: place for place, ensemble in enumerate(NAMES)}
"""Of each ensemble, in all charts."""

PAPER: Mapping[Ensemble, str] = {name: NAMES[name] for name in ("gaussian", "orthogonal", "goe")}
"""Those that the paper draws."""

lines = partial(Lines, by=("ensemble",), label=NAMES, colors=COLORS)
"""A line for each ensemble."""


def weight(
    ensemble: Ensemble,
    width: int,
    generator: torch.Generator,
    scale: float = 1,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Draw a member of an ensemble at a scale, `(width, width)`."""
    w = torch.empty(width, width, dtype=dtype)
    fill(w, ensemble, scale, generator=generator)
    return w
