"""How the recurrent weights begin, as a recipe names it."""

from __future__ import annotations

from dataclasses import dataclass

from equilibria.models import Model
from equilibria.nn.init import Begun, Ensemble, initialize

__all__ = ["Initialisation"]


@dataclass(frozen=True, kw_only=True)
class Initialisation:
    """Fills the recurrent weights of the cell with members of an ensemble.

    See `equilibria.nn.init.initialize`; `equilibria initialise RECIPE` says what to choose.

    Args:
        ensemble: family of random matrices.
        scale: sqrt(V), the root mean square of the singular values.
        layers: only weights whose path matches one of these patterns, such as `*expand*`; null for
            all that the cell applies to its state.

    papers: Agarwala and Schoenholz 2022, sec. 4.
    """

    ensemble: Ensemble = "orthogonal"
    scale: float = 1.0
    layers: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.scale < float("inf"):
            raise ValueError(f"scale is sqrt(V), finite and not negative; got {self.scale}")

    def apply(self, model: Model) -> list[Begun]:
        """Fill the weights of `model` and return what they were set to."""
        return initialize(model, self.ensemble, self.scale, layers=self.layers)
