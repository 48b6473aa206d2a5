"""The trainings of images behind Figures 1, 6, 7 and 10 and Tables 2 and 3 of Bai et al. 2021."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from equilibria.experiments import counterpart
from equilibria.experiments.measures.probing import Probing
from equilibria.experiments.studies.mdeq import _networks as networks
from equilibria.experiments.study import Scale
from equilibria.experiments.training import Training
from equilibria.models.vision.resnet import ResNetConfig
from equilibria.solve import Implicit
from equilibria.train import recipe as recipes
from equilibria.train.recipe import Recipe
from equilibria.train.regulariser import JacobianPenalty

__all__ = ["BEST", "DECAY", "GAMMAS", "LIMIT", "PROBABILITY", "PROBED", "SEEDS", "THIRD"]
__all__ += ["TOLERANCE", "WORDS", "recipe_of", "training_of"]

BASE: Mapping[Scale, str] = {"cpu": "mdeq-cifar10-16", "gpu": "mdeq-cifar10-gpu"}
MODEL: Mapping[Scale, Mapping[str, Any]] = {
    "cpu": {
        "channels": (16, 28),
        "head_channels": (4, 8),
        "halvings": 1,
        "initial": None,
        "dropout": 0.0,
    },
    "gpu": {},
}
"""Fields of the model that differ from the recipe's. PyTorch's own initialisation and no dropout:
at this size, small weights and dropout bound the Jacobian by themselves, an unregularised network
is solved in few evaluations too, and nothing is left for the penalty to do."""

TOLERANCE: Mapping[Scale, float] = {"cpu": 1e-3, "gpu": 1e-2}
"""Of forward and adjoint; bfloat16 leaves a floor above the smaller one."""

LIMIT, THIRD = 18, 6
"""Evaluations of a solve, and products of its adjoint: without the penalty, and with it."""

BEST = "jr-0.3"
GAMMAS = {"jr-0.1": 0.1, BEST: 0.3, "jr-1.2": 1.2}
PROBABILITY = 0.3
DECAY = 0.05
PROBED = Probing(6, 14)
"""Evaluations and products after which Figures 1a and 10a look at the residuals."""

WORDS: Mapping[str, str] = {
    "plain": "MDEQ",
    "decay": "MDEQ, weight decay",
    **{name: f"MDEQ, regularised, gamma {gamma:g}" for name, gamma in GAMMAS.items()},
}
"""What each training is, for a reader."""

SEEDS: Mapping[str, Sequence[int]] = {
    name: (0, 1, 2) if name in ("plain", BEST) else (0,) for name in (*WORDS, "resnet")
}
"""Seeds with which each is trained."""

MINUTES: Mapping[Scale, float] = {"cpu": 7, "gpu": 240}

_recipe = functools.cache(recipes.load)


def training_of(name: str, scale: Scale, seed: int = 0) -> Training:
    """Return a training, with a probe after each epoch of an equilibrium network.

    Args:
        name: one of `WORDS`, or "resnet" for a ResNet of about the recipe's size.
        scale: size of the recipe.
        seed: of the training.
    """
    if name != "resnet":
        return Training(recipe=recipe_of(name, scale, seed), minutes=MINUTES[scale], probe=PROBED)
    recipe = networks.recipe_of("cifar10", "resnet", scale, seed)
    if scale == "gpu":
        base = replace(_recipe(BASE[scale]), seed=seed)
        recipe = counterpart.with_model(base, ResNetConfig())
    return Training(recipe=recipe, minutes=MINUTES[scale] / 4)


def recipe_of(name: str, scale: Scale, seed: int = 0) -> Recipe:
    """Return the recipe of one of `WORDS`: all are alike but for limits, penalty and decay."""
    base = replace(_recipe(BASE[scale]), seed=seed)
    gamma, optimiser = GAMMAS.get(name), cast(Any, base.optimiser)
    limits = {"rtol": TOLERANCE[scale], "max_evals": LIMIT if gamma is None else THIRD}
    if not isinstance(base.adjoint, Implicit):
        raise ValueError(f"the trainings limit the products of an Implicit, not of {base.adjoint}")
    linear = replace(cast(Any, base.adjoint.linear), **limits)
    return replace(
        base,
        description=f"{WORDS[name]}, at most {limits['max_evals']} evaluations: {base.description}",
        model=replace(cast(Any, base.model), **MODEL[scale]),
        solver=replace(cast(Any, base.solver), **limits),
        eval_solver=None,
        adjoint=replace(base.adjoint, linear=linear),
        optimiser=replace(optimiser, weight_decay=DECAY) if name == "decay" else optimiser,
        regulariser=gamma and JacobianPenalty(gamma=gamma, probability=PROBABILITY),
    )
