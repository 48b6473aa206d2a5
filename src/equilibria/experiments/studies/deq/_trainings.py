"""The trainings that studies of Bai et al. 2019 share."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from equilibria.experiments import counterpart
from equilibria.experiments.study import Scale
from equilibria.experiments.training import Training
from equilibria.run import recipe as recipes
from equilibria.run.recipe import Recipe
from equilibria.zoo.synthetic.data.copy_memory import VOCABULARY

__all__ = ["CELLS", "COPY_SEEDS", "LAYERS", "RECURRENT", "SEEDS", "copying", "language", "named"]

LAYERS = 12
"""Layers of the weight-tied stack that the equilibrium network is compared with."""

CELLS = {"transformer": "lm-ptb", "trellisnet": "lm-ptb-trellisnet"}
"""The recipe of each cell on Penn Treebank."""

SEEDS: Mapping[str, Sequence[int]] = {"transformer": (0, 1, 2), "trellisnet": (0,)}
"""Seeds with which each cell is trained, the equilibrium network and the stack alike."""

COPY_SEEDS = (0, 1, 2)
RECURRENT = ("lstm", "gru")


@functools.cache
def named(name: str, scale: Scale, *options: str) -> Recipe:
    """Return the shipped recipe `name`, its -gpu size where `scale` asks for it and there is one.

    Args:
        name: of the recipe at CPU scale.
        scale: which of its sizes.
        options: overrides, as on the command line.
    """
    larger = f"{name}-gpu"
    if scale == "gpu" and larger in recipes.available():
        name = larger
    return recipes.load(name, options)


def language(cell: str, scale: Scale, seed: int = 0, *, tied: bool = False) -> Training:
    """Return the training of a network on Penn Treebank.

    Args:
        cell: one of `CELLS`.
        scale: size of the recipe.
        seed: of the training.
        tied: the weight-tied stack of `LAYERS` layers in place of the equilibrium network.
    """
    recipe = named(CELLS[cell], scale, "--seed", str(seed))
    if tied:
        recipe = counterpart.explicit(recipe, layers=LAYERS)
    return Training(recipe=recipe, minutes={"cpu": 15, "gpu": 60}[scale])


def copying(network: str, scale: Scale, seed: int) -> Training:
    """Return a training on copy memory: of "deq", or of an "lstm" or "gru" of its size."""
    recipe = named("copy-memory", scale, "--seed", str(seed))
    if network != "deq":
        recipe = counterpart.recurrent(recipe, network, VOCABULARY)
    return Training(recipe=recipe, minutes=6 if network == "deq" else 1)
