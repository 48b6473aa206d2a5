"""Ensembles by name, and weights that hold several maps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor

from equilibria.nn.init.ensembles import antisymmetric_, gaussian_, goe_, orthogonal_
from equilibria.nn.init.normal import normal_
from equilibria.words import nearest

Ensemble = Literal["gaussian", "orthogonal", "goe", "antisymmetric", "normal"]
"""A family of random matrices by name; see `equilibria.nn.init.ensembles`."""

ENSEMBLES: Mapping[Ensemble, Callable[..., Tensor]] = {
    "gaussian": gaussian_,
    "orthogonal": orthogonal_,
    "goe": goe_,
    "antisymmetric": antisymmetric_,
    "normal": normal_,
}
"""The function of each ensemble, (weight, scale, generator) -> weight."""

SQUARE: frozenset[str] = frozenset({"goe", "antisymmetric", "normal"})
"""Ensembles whose members are square: symmetry needs as many outputs as inputs."""


@dataclass(frozen=True, kw_only=True)
class Maps:
    """How a weight of shape (outputs, inputs, ...) is made up of linear maps.

    A module that owns layers whose weights hold several maps, such as query, key and value, says so
    in an attribute `maps`, a mapping from the path of a layer below it to a `Maps`, or to None for
    a layer that is not applied to the state.

    Args:
        rows: outputs of each of the maps that stand one below the other; empty for one map.
        columns: maps that stand side by side, such as the taps of a convolution over time.
        transposed: the weight's shape is (inputs, outputs, ...), as that of a transposed
            convolution; its maps are its transpose's, and `rows` are inputs.
    """

    rows: tuple[int, ...] = ()
    columns: int = 1
    transposed: bool = False

    def tiles(self, weight: Tensor) -> list[Tensor]:
        """Return the maps of a weight (outputs, inputs, ...), views of it.

        Raises:
            ValueError: its shape is not that of these maps.
        """
        if weight.ndim < 2:
            raise ValueError(f"a tensor of shape {tuple(weight.shape)} holds no linear maps")
        outputs, inputs = weight.shape[:2]
        if (self.rows and sum(self.rows) != outputs) or inputs % self.columns:
            raise ValueError(
                f"a weight of shape {tuple(weight.shape)} cannot be made of maps with "
                f"{self.rows} outputs, {self.columns} side by side"
            )
        below = torch.split(weight, list(self.rows)) if self.rows else [weight]
        tiles = [tile for row in below for tile in row.chunk(self.columns, 1)]
        return [tile.transpose(0, 1) for tile in tiles] if self.transposed else tiles


def check_ensemble(ensemble: str) -> Ensemble:
    """Return the name of an ensemble.

    Raises:
        ValueError: there is none of that name.
    """
    if ensemble not in get_args(Ensemble):
        raise ValueError(f"there is no ensemble '{ensemble}'{nearest(str(ensemble), ENSEMBLES)}")
    return cast(Ensemble, ensemble)


@torch.no_grad()
def fill(
    weight: Tensor,
    ensemble: Ensemble,
    scale: float = 1.0,
    maps: Maps | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> tuple[Ensemble, ...]:
    """Fill a weight in place, each of its maps with a member of an ensemble.

    A map that cannot be a member is Gaussian of the same scale: one that is not square where the
    ensemble's members are, or a convolution with kernels of even size (`goe`, `antisymmetric`) or
    larger than 1 (`normal`).

    Args:
        weight: shape (outputs, inputs, ...).
        ensemble: one of `ENSEMBLES`.
        scale: sqrt(V), not negative.
        maps: what it is made of; None for one map.
        generator: source of randomness; torch's global one by default.
        **options: of the ensemble's function, such as the `spectrum` of `normal_`.

    Returns:
        The ensemble of each map.

    Raises:
        TypeError: the weight is not a real floating-point one, or the ensemble has no such option.
        ValueError: there is no such ensemble, the weight is none, or not made of these maps.
    """
    _check_options(check_ensemble(ensemble), options)
    used: list[Ensemble] = []
    for tile in (maps or Maps()).tiles(weight):
        chosen: Ensemble = ensemble if _fits(tile, ensemble) else "gaussian"
        extra = options if chosen == ensemble else {}
        ENSEMBLES[chosen](tile, scale, generator=generator, **extra)
        used.append(chosen)
    return tuple(used)


def _check_options(ensemble: Ensemble, options: Mapping[str, Any]) -> None:
    """What the function of an ensemble takes beside what all take.

    Raises:
        TypeError: it does not take one of these.
    """
    known = list(inspect.signature(ENSEMBLES[ensemble]).parameters)[3:]
    for name in options:
        if name not in known:
            takes = f"takes {', '.join(known)}" if known else "takes none"
            raise TypeError(f"the ensemble '{ensemble}' has no option '{name}'; it {takes}")


def _fits(tile: Tensor, ensemble: Ensemble) -> bool:
    """Whether a map can be a member."""
    outputs, inputs, *kernel = tile.shape
    if ensemble not in SQUARE:
        return True
    if ensemble == "normal":
        return outputs == inputs and all(size == 1 for size in kernel)
    return outputs == inputs and all(size % 2 for size in kernel)


@dataclass(frozen=True, kw_only=True)
class Elementwise:
    """Says that a cell is f(z; u) = phi(W z + u), or phi(W z) + u, with W its one recurrent weight.

    A cell of this form says so in an attribute `theory`, and what `equilibria.theory` predicts of
    it is shown beside what is measured. Its first operand is u.

    Args:
        activation: phi, by name or as a function of a tensor, elementwise.
        injection: where u is added: "inside" phi, or "outside", behind it.

    papers: Agarwala and Schoenholz 2022, eq. 21 (outside).
    """

    activation: str | Callable[[Tensor], Tensor]
    injection: Literal["inside", "outside"] = "inside"

    def __str__(self) -> str:
        phi = self.activation if isinstance(self.activation, str) else "phi"
        return f"{phi}(W z) + u" if self.injection == "outside" else f"{phi}(W z + u)"
