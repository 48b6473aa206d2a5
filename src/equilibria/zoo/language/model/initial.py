"""How the weights of a cell begin."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from equilibria.checks import check_within
from equilibria.nn.init import Maps, fill

__all__ = ["Ensemble", "initialise", "scale_of"]

Ensemble = Literal["normal", "gaussian", "orthogonal", "goe", "antisymmetric"]
"""`normal`: independent entries of standard deviation `scale`, as in the papers. The others are the
ensembles of `equilibria.nn.init`, where `scale` is sqrt(V). That of normal matrices there, which
has the name too, is for `equilibria.nn.init.initialize` and a recipe's `initialisation`."""

SCALES: dict[str, float] = {
    "normal": 0.01,
    "gaussian": 1.0,
    "orthogonal": 1.0,
    "goe": 0.5,
    "antisymmetric": 0.5,
}


def scale_of(initial: str, scale: float | None) -> float:
    """The scale where None stands for the papers' 0.01, or for an ensemble's critical value.

    Raises:
        ValueError: there is no such ensemble, or the scale is negative.
    """
    if initial not in SCALES:
        raise ValueError(f"initial must be one of {', '.join(SCALES)}, got '{initial}'")
    if scale is not None:
        check_within("[0, inf)", scale=scale)
    return SCALES[initial] if scale is None else scale


@torch.no_grad()
def initialise(
    linear: nn.Linear,
    initial: Ensemble,
    scale: float,
    rows: Sequence[int] | None = None,
    columns: int = 1,
) -> None:
    """Fill the weight of a linear map, in place, and set its bias to zero.

    Args:
        linear: weight (outputs, inputs); not normalised yet.
        initial: the ensemble; one that needs square matrices gives way to `gaussian` for a map that
            is not square.
        scale: see `Ensemble`.
        rows: outputs of each of the maps that the weight holds one below the other, such as query,
            key and value; None for one.
        columns: maps that it holds side by side, such as the taps of a convolution. Each is a
            member of the ensemble.
    """
    if linear.bias is not None:
        linear.bias.zero_()
    if initial == "normal":
        linear.weight.normal_(0.0, scale)
        return
    fill(linear.weight.detach(), initial, scale, Maps(rows=tuple(rows or ()), columns=columns))
