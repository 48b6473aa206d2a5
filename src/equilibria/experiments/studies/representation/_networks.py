"""Coordinate networks, named as in the tables of the thesis, and their trainings."""

from __future__ import annotations

import re
from collections.abc import Sequence

from equilibria.experiments.study import Scale
from equilibria.experiments.training import Training
from equilibria.run import recipe as recipes
from equilibria.run.recipe import Recipe

__all__ = ["FILTERS", "recipe", "training"]

FILTERS = ("Fourier", "Gabor", "sines")

_MODELS = {
    "Fourier": ("imfn", "mfn", ("--model.filter", "fourier")),
    "Gabor": ("imfn", "mfn", ("--model.filter", "gabor")),
    "sines": ("isiren", "siren-injected", ()),
}
"""The equilibrium network, the explicit one, and further options."""

_NO_SOLVES = (
    *("--solver.name", "null", "--eval-solver.name", "null", "--adjoint.name", "null"),
    *("--reuse", "false"),
)
_NAME = re.compile(r"(implicit|explicit) (\d+)L-(\d+)D")


def recipe(base: str, filters: str, network: str, *words: str) -> Recipe:
    """Return a recipe with a different network.

    Args:
        base: its name.
        filters: one of `FILTERS`.
        network: such as "implicit 1L-256D".
        words: further options.
    """
    found = _NAME.fullmatch(network)
    assert found is not None, network
    kind, layers, width = found.groups()
    implicit, explicit, options = _MODELS[filters]
    given = ("--model.name", implicit if kind == "implicit" else explicit, *options)
    solves = () if kind == "implicit" else _NO_SOLVES
    size = ("--model.layers", layers, "--model.width", width)
    return recipes.load(base, [*given, *size, *solves, *words])


def training(
    base: str, filters: str, network: str, minutes: float, words: Sequence[str], scale: Scale
) -> Training:
    """Return the training of such a recipe; at GPU scale, with the published size."""
    name = f"{base}-gpu" if scale == "gpu" else base
    return Training(recipe=recipe(name, filters, network, *words), minutes=minutes)
