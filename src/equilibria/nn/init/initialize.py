"""A model whose recurrent weights begin as members of an ensemble."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from equilibria.nn.init.maps import Ensemble, fill
from equilibria.nn.init.weight import RecurrentWeight, recurrent_weights, set_weights

_KERNELS = {
    "goe": "have kernels of odd size",
    "antisymmetric": "have kernels of odd size",
    "normal": "have kernels of size 1",
}


@dataclass(frozen=True)
class InitializedWeight:
    """What a weight was set to.

    Attributes:
        path: of the weight in the model.
        shape: of the weight.
        ensembles: of each map that it is made of.
        scale: sqrt(V) that was asked for.
        gain: of the weight as f uses it, sqrt(tr(W W^T) / outputs), the root mean square of W x for
            independent entries x of mean square 1. Other than `scale` by chance, where an
            orthogonal map has more outputs than inputs, and where a normalisation bounds W.
    """

    path: str
    shape: tuple[int, ...]
    ensembles: tuple[Ensemble, ...]
    scale: float
    gain: float

    def __str__(self) -> str:
        kinds = " and ".join(dict.fromkeys(self.ensembles))
        count = len(self.ensembles)
        maps = f"{count} maps, " if count > 1 else ""
        size = " x ".join(map(str, self.shape))
        return f"{self.path} ({size}): {maps}{kinds}, scale {self.scale:g}, gain {self.gain:.3g}"


@torch.no_grad()
def initialize(
    model: nn.Module,
    ensemble: Ensemble,
    scale: float = 1.0,
    *,
    layers: Sequence[str] | None = None,
    generator: torch.Generator | None = None,
    **options: Any,
) -> list[InitializedWeight]:
    """Fill the recurrent weights of a model with members of an ensemble, in place.

    Each linear map that f applies to its state is one member: a weight that holds several, such as
    query, key and value, is several. A map that cannot be a member is Gaussian of the same scale
    (see `fill`), and the rows that are returned say so. Biases, and weights that are not applied to
    the state, stay; `recurrent_weights` says how a cell tells which these are.

    Args:
        model: a model with `DEQ` layers, or a cell itself.
        ensemble: one of `ENSEMBLES`.
        scale: sqrt(V), the root mean square of the singular values; not negative.
        layers: only weights whose path matches one of these patterns, such as `*expand*`; None for
            all.
        generator: source of randomness; torch's global one by default.
        **options: of the ensemble's function, such as the `spectrum` of `normal_`.

    Returns:
        What was set, a row for each weight; `print(*rows, sep="\\n")` tells it.

    Raises:
        TypeError: the ensemble has no such option, or a weight is not real and floating-point.
        ValueError: there is no such ensemble, no recurrent weight, none that a pattern matches,
            none that can be a member, or one that cannot be set; nothing has been changed then.

    papers: Agarwala and Schoenholz 2022, sec. 4 and appendix D.
    """
    drawn: list[tuple[RecurrentWeight, torch.Tensor, tuple[Ensemble, ...]]] = []
    for weight in recurrent_weights(model, layers):
        value = torch.empty_like(weight.value(), memory_format=torch.contiguous_format)
        ensembles = fill(value, ensemble, scale, weight.maps, generator, **options)
        drawn.append((weight, value, ensembles))
    if not any(ensemble in ensembles for _, _, ensembles in drawn):
        shapes = ", ".join(f"{w.path} {tuple(value.shape)}" for w, value, _ in drawn)
        raise ValueError(
            f"no recurrent weight of {type(model).__name__} can be a member of '{ensemble}', whose "
            f"members are square, and of convolutions {_KERNELS.get(ensemble, '')}; there are: "
            f"{shapes}"
        )
    set_weights([(weight, value) for weight, value, _ in drawn])
    return [
        InitializedWeight(weight.path, tuple(value.shape), ensembles, scale, weight.gain())
        for weight, value, ensembles in drawn
    ]
