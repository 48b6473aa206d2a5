"""What weight ensembles are called in tables and charts, and the colours that they have there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from equilibria.experiments.views import Lines
from equilibria.nn.init import Ensemble

__all__ = ["COLOURS", "NAMES", "PAPER", "lines"]

NAMES: Mapping[Ensemble, str] = {
    "gaussian": "Gaussian",
    "orthogonal": "orthogonal",
    "goe": "GOE",
    "antisymmetric": "antisymmetric",
    "normal": "normal",
}
"""In the order of the tables; the paper calls the first "random"."""

COLOURS: Mapping[Ensemble, int] = {ensemble: place for place, ensemble in enumerate(NAMES)}
"""Of each ensemble, in all charts."""

PAPER: Mapping[Ensemble, str] = {name: NAMES[name] for name in ("gaussian", "orthogonal", "goe")}
"""Those that the paper draws."""

lines = partial(Lines, by=("ensemble",), label=NAMES, colours=COLOURS)
"""A line for each ensemble."""
