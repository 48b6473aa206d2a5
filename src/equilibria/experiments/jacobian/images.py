"""The trainings of images behind Figures 1, 6 and 10 and Tables 2 and 3 of Bai et al. 2021."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from equilibria.experiments import counterpart, trainings
from equilibria.experiments.case import Case
from equilibria.experiments.experiment import Scale
from equilibria.experiments.mdeq import networks
from equilibria.experiments.probing import probing
from equilibria.experiments.training import training
from equilibria.models.vision.resnet import ResNetConfig
from equilibria.solve import Implicit
from equilibria.train.recipe import Recipe
from equilibria.train.regulariser import JacobianPenalty

__all__ = [
    "BEST",
    "GAMMAS",
    "LIMIT",
    "NAMES",
    "PROBED",
    "SEEDS",
    "THIRD",
    "WORDS",
    "case",
    "key",
    "recipe_of",
    "regularised",
    "resnet",
    "resnet_key",
]

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
"""Fields of the model that differ from the recipe's. Torch's own start and no dropout, since small
weights and dropout hold the feedback down by themselves at this size: with them an unregularised
network is solved in few evaluations too, and there is nothing for the penalty to do."""

TOLERANCE: Mapping[Scale, float] = {"cpu": 1e-3, "gpu": 1e-2}
"""Of forward and adjoint; bfloat16 leaves a floor above the smaller one."""

LIMIT, THIRD = 18, 6
"""Evaluations of a solve, and products of its adjoint: without the penalty, and with it."""

GAMMAS = (0.1, 0.3, 1.2)
BEST = 0.3
PROBABILITY = 0.3
DECAY = 0.05
PROBED = (6, 14)
"""Evaluations and products after which Figures 1a and 10a look at the residuals."""

ALL = (0, 1, 2)
MINUTES: Mapping[Scale, float] = {"cpu": 7, "gpu": 240}


def regularised(gamma: float) -> str:
    """Return the name of the training with the penalty of this weight."""
    return f"jr-{gamma:g}"


WORDS: Mapping[str, str] = {
    "plain": "MDEQ",
    "decay": "MDEQ, weight decay",
    **{regularised(gamma): f"MDEQ, regularised, gamma {gamma:g}" for gamma in GAMMAS},
}
"""What each training is, for a reader."""

NAMES = tuple(WORDS)

SEEDS: Mapping[str, Sequence[int]] = {
    name: ALL if name in ("plain", regularised(BEST)) else ALL[:1] for name in NAMES
}
"""Seeds with which each is trained."""


def key(name: str, seed: int) -> str:
    """Return the key of a training, one of `NAMES`."""
    return f"images-{name}-{seed}"


def case(name: str, scale: Scale, seed: int = 0) -> Case:
    """Return the shared case that trains one of `NAMES`, with a probe after each epoch."""
    return training(
        key(name, seed), recipe_of(name, scale, seed), MINUTES[scale], probe=probing(*PROBED)
    )


def recipe_of(name: str, scale: Scale, seed: int = 0) -> Recipe:
    """Return the recipe of one of `NAMES`: all are alike but for limits, penalty and decay."""
    base = trainings.named(BASE[scale], "cpu", "--seed", str(seed))
    optimiser = cast(Any, base.optimiser)
    penalty = {
        regularised(gamma): JacobianPenalty(gamma=gamma, probability=PROBABILITY)
        for gamma in GAMMAS
    }.get(name)
    limits = {"rtol": TOLERANCE[scale], "max_evals": LIMIT if penalty is None else THIRD}
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
        regulariser=penalty,
    )


def resnet_key(seed: int = 0) -> str:
    """Return the key of the explicit network's training."""
    return f"images-resnet-{seed}"


def resnet(scale: Scale, seed: int = 0) -> Case:
    """Return the case that trains a ResNet on the same images, of about as many parameters."""
    if scale == "cpu":
        recipe = networks.recipe_of("cifar10", "resnet", scale, seed)
    else:
        base = trainings.named(BASE[scale], "cpu", "--seed", str(seed))
        recipe = counterpart.with_model(base, ResNetConfig())
    return training(resnet_key(seed), recipe, MINUTES[scale] / 4)
