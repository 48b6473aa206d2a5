"""Initialisation of the recurrent weights, as a recipe names it."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from equilibria.checks import check_fields
from equilibria.nn import using
from equilibria.nn.init import Ensemble, InitializedWeight, initialize
from equilibria.run.models import Model
from equilibria.solve import Picard, Unrolled
from equilibria.stability.rescale import set_radius

SMALL = 0.3
"""Scale from which the search for a radius starts: solves are short there."""


@dataclass(frozen=True)
class InitializationRecord:
    """What the recurrent weights of a run were set to.

    Attributes:
        rows: one for each weight.
        radius: largest spectral radius at z* over the batch that it was set on; None where a scale
            was given.
    """

    rows: tuple[InitializedWeight, ...]
    radius: float | None = None

    def json(self) -> dict[str, Any]:
        """Return it as a run records it: the gain of each weight, and its ensembles."""
        return {
            "radius": self.radius,
            "gain": {row.path: row.gain for row in self.rows},
            "ensembles": {row.path: list(dict.fromkeys(row.ensembles)) for row in self.rows},
        }

    def __str__(self) -> str:
        lines = [str(row) for row in self.rows]
        if self.radius is not None:
            lines.append(f"spectral radius at the first batch: {self.radius:.3f}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Initialization:
    """Fills the recurrent weights of the cell with draws from an ensemble.

    See `equilibria.nn.init.initialize`; `equilibria initialize RECIPE` recommends what to choose.

    Args:
        ensemble: family of random matrices.
        scale: sqrt(V), the root mean square of the singular values; null for 1, or for whatever
            `radius` requires.
        radius: largest spectral radius of df/dz at z* over the first batch of training, between 0
            and 1, which is measured and the weights scaled to; null to use `scale`. At most one of
            the two may be given.
        layers: only weights whose path matches one of these patterns, such as `*expand*`; null for
            all that the cell applies to its state.

    papers: Agarwala and Schoenholz 2022, sec. 4.
    """

    ensemble: Ensemble = "orthogonal"
    scale: float | None = None
    radius: float | None = None
    layers: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.scale is not None and not 0.0 <= self.scale < math.inf:
            raise ValueError(f"scale, sqrt(V), must be finite and not negative; got {self.scale}")
        if self.radius is not None and not 0.0 < self.radius < 1.0:
            raise ValueError(
                "radius, the spectral radius of df/dz at a fixed point, must lie between 0 and 1; "
                f"got {self.radius}"
            )
        if self.scale is not None and self.radius is not None:
            raise ValueError(
                f"scale ({self.scale:g}) and radius ({self.radius:g}) exclude each other: the "
                "radius is reached by scaling; set one of them to null"
            )

    def apply(self, model: Model, first: Callable[[], Any]) -> InitializationRecord:
        """Fill the weights of `model`.

        Args:
            model: changed in place.
            first: returns the inputs of the first batch of training, the same on all processes,
                on which `radius` is measured. The weights are drawn on their own device, and the
                model then moves to the device of the inputs: a seed gives the same weights with a
                radius as with a scale, on any device.

        Returns:
            What they were set to.

        Raises:
            ValueError: the model has no recurrent weight, or none that a pattern matches; what was
                drawn is outside the bounds that the model keeps; or the radius cannot be reached
                on this batch: the message names those that can.
        """
        begun = self._fill(model, first)
        _check_bounds(model)
        return begun

    def _fill(self, model: Model, first: Callable[[], Any]) -> InitializationRecord:
        if self.radius is None:
            scale = 1.0 if self.scale is None else self.scale
            return InitializationRecord(
                tuple(initialize(model, self.ensemble, scale, layers=self.layers))
            )
        rows = initialize(model, self.ensemble, SMALL, layers=self.layers)
        inputs = model.first_piece(first())
        model.to(pytree.tree_leaves(inputs)[0].device)
        found = set_radius(model, inputs, radius=self.radius, layers=self.layers)
        scaled = tuple(
            replace(row, scale=found.factor * row.scale, gain=now.after)
            for row, now in zip(rows, found.rows, strict=True)
        )
        return InitializationRecord(scaled, found.radius)


@torch.no_grad()
def _check_bounds(model: Model) -> None:
    """Refuse weights that the first step of training would move back into their bounds."""
    before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    model.constrain()
    moved = [n for n, weight in model.named_parameters() if not torch.equal(weight, before[n])]
    if moved:
        raise ValueError(
            f"initialisation draws weights outside the bounds that {type(model).__name__} keeps "
            f"({', '.join(moved)}): lower its scale or radius, or leave initialisation out"
        )


# --- pretrain -------------------------------------------------------------------------------------

# Pretraining as a shallow network, as a recipe names it.


@dataclass(frozen=True, kw_only=True)
class ShallowStart:
    """Trains the cell unrolled a few times in the first steps, then solves for its fixed point.

        z_(i+1) = f(z_i; x),    z_0 = 0,    i < layers,

    is an ordinary weight-tied network, with ordinary gradients through all its layers. An
    evaluation during these steps uses the same shallow network. The regulariser and the correction
    begin with the solves.

    Args:
        layers: evaluations of the cell.
        steps: steps of the optimiser before the first solve; below 1, their share of the run.

    papers: Bai et al. 2019, sec. 4 and appendix E.
    """

    layers: int = 2
    steps: int | float = 1000

    def __post_init__(self) -> None:
        check_fields(self, "[1, inf)", "layers")
        if not (0 < self.steps < 1 or (self.steps >= 1 and self.steps % 1 == 0)):
            raise ValueError(
                "steps must be a whole number of at least 1, or a share of the run between 0 and 1;"
                f" got {self.steps}"
            )

    def count(self, steps: int) -> int:
        """Return how many of a run's steps are shallow; a share of them is never all of them."""
        if self.steps >= 1:
            return int(self.steps)
        return min(max(1, round(self.steps * steps)), steps - 1)

    def unroll(self, model: Model) -> AbstractContextManager[None]:
        """Make `model` the shallow network within a `with` block."""
        return using(model, Picard(), Unrolled(max_evals=self.layers))
