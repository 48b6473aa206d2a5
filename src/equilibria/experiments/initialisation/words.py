"""What families of weights are called in tables and figures, and the colours they have there."""

from __future__ import annotations

from collections.abc import Mapping

from equilibria.nn.init import Ensemble

__all__ = ["COLOURS", "NAMES", "PAPER"]

NAMES: Mapping[Ensemble, str] = {
    "gaussian": "Gaussian",
    "orthogonal": "orthogonal",
    "goe": "GOE",
    "antisymmetric": "antisymmetric",
    "normal": "normal",
}
"""In the order of the tables; the paper calls the first "random"."""

COLOURS: Mapping[Ensemble, int] = {ensemble: place for place, ensemble in enumerate(NAMES)}
"""Of each family, in all figures."""

PAPER: Mapping[Ensemble, str] = {name: NAMES[name] for name in ("gaussian", "orthogonal", "goe")}
"""Those that the paper draws."""
