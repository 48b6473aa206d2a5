"""The trainings that several experiments share: each is run once for all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from equilibria.data.copy_memory import VOCABULARY
from equilibria.experiments import counterpart
from equilibria.experiments.case import Case
from equilibria.experiments.experiment import Scale
from equilibria.experiments.training import training
from equilibria.train import recipe as recipes
from equilibria.train.recipe import Recipe

__all__ = [
    "CELLS",
    "LAYERS",
    "SEEDS",
    "copying",
    "copying_key",
    "deq_key",
    "language",
    "named",
    "tied_key",
]

LAYERS = 12
"""Layers of the weight-tied stack that the equilibrium network is compared with."""

CELLS = {"transformer": "lm-ptb", "trellisnet": "lm-ptb-trellisnet"}
"""The recipe of each cell on Penn Treebank, by the name that keys of cases give it."""

SEEDS: Mapping[str, Sequence[int]] = {"transformer": (0, 1, 2), "trellisnet": (0,)}
"""Seeds with which each cell is trained, the equilibrium network and the stack alike."""

MINUTES: Mapping[Scale, float] = {"cpu": 15, "gpu": 60}
COPYING: Mapping[str, float] = {"deq": 6, "lstm": 1, "gru": 1}
COPY = "copy-memory"
COPY_SEEDS = (0, 1, 2)
RECURRENT = ("lstm", "gru")


@functools.cache
def named(name: str, scale: Scale, *options: str) -> Recipe:
    """Return the shipped recipe `name`, that for a GPU where `scale` asks for it and there is one.

    Args:
        name: of the recipe at CPU scale.
        scale: which of its sizes.
        options: overrides, as on the command line.
    """
    larger = f"{name}-gpu"
    if scale == "gpu" and larger in recipes.available():
        name = larger
    return recipes.load(name, options)


def deq_key(cell: str, seed: int) -> str:
    """Return the key of the equilibrium network's training on Penn Treebank."""
    return f"ptb-{cell}-deq-{seed}"


def tied_key(cell: str, seed: int) -> str:
    """Return the key of the weight-tied stack's."""
    return f"ptb-{cell}-tied-{seed}"


def language(cell: str, scale: Scale, seed: int = 0, *, deq: bool = True) -> Case:
    """Return the case that trains a network on Penn Treebank.

    Args:
        cell: one of `CELLS`.
        scale: size of the recipe.
        seed: of the training.
        deq: the equilibrium network, or else the weight-tied stack of `LAYERS` layers.
    """
    recipe = named(CELLS[cell], scale, "--seed", str(seed))
    if deq:
        return training(deq_key(cell, seed), recipe, MINUTES[scale])
    stack = counterpart.explicit(recipe, layers=LAYERS)
    return training(tied_key(cell, seed), stack, MINUTES[scale])


def copying_key(network: str, seed: int) -> str:
    """Return the key of a training on copy memory: of `deq`, `lstm` or `gru`."""
    return f"copy-{network}-{seed}"


def copying(scale: Scale) -> list[Case]:
    """Return the trainings on copy memory: the equilibrium network, LSTM and GRU of its size."""
    make: dict[str, Callable[[Recipe], Recipe]] = {
        "deq": lambda recipe: recipe,
        **{name: _recurrent(name) for name in RECURRENT},
    }
    return [
        training(
            copying_key(network, seed),
            of(named(COPY, scale, "--seed", str(seed))),
            COPYING[network],
        )
        for network, of in make.items()
        for seed in COPY_SEEDS
    ]


def _recurrent(name: str) -> Callable[[Recipe], Recipe]:
    return lambda recipe: counterpart.recurrent(recipe, name, VOCABULARY)
