"""The trainings of images behind Figures 1, 6, 7 and 10 and Tables 2 and 3 of Bai et al. 2021."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from equilibria.run import recipe as recipes
from equilibria.run.recipe import Recipe
from equilibria.run.regularizer import JacobianPenalty
from equilibria.run.studies.measures.probes import Probing
from equilibria.run.studies.study import Scale
from equilibria.run.studies.training import Training
from equilibria.zoo.vision.model.explicit import ResNetConfig
from papers.mdeq import common
from papers.measures import counterpart

BASE: Mapping[Scale, str] = {"cpu": "mdeq-cifar10-16", "gpu": "mdeq-cifar10-gpu"}
UNSTABLE = {"channels": (16, 28), "head_channels": (4, 8), "halvings": 1}
UNSTABLE |= {"initial": None, "dropout": 0.0}
"""Fields of the model at CPU scale that differ from the recipe's. PyTorch's own initialisation and
no dropout: at this size, small weights and dropout bound the Jacobian by themselves, an
unregularised network is solved in few evaluations too, and nothing is left to the penalty."""

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


def training_of(name: str, scale: Scale, seed: int = 0) -> Training:
    """Return a training, with a probe after each epoch of an equilibrium network.

    Args:
        name: one of `WORDS`, or "resnet" for a ResNet of about the recipe's size.
        scale: size of the recipe.
        seed: of the training.
    """
    minutes = {"cpu": 7, "gpu": 240}[scale]
    if name != "resnet":
        return Training(recipe_of(name, scale, seed), minutes, probe=PROBED)
    recipe = common.recipe_of("cifar10", "resnet", scale, seed)
    if scale == "gpu":
        recipe = counterpart.with_model(_base(scale, seed), ResNetConfig())
    return Training(recipe, minutes / 4)


def _base(scale: Scale, seed: int) -> Recipe:
    return replace(recipes.load(BASE[scale]), seed=seed)


def recipe_of(name: str, scale: Scale, seed: int = 0) -> Recipe:
    """Return the recipe of one of `WORDS`: all are alike but for limits, penalty and decay."""
    base: Any = _base(scale, seed)
    gamma, decayed = GAMMAS.get(name), {"weight_decay": DECAY} if name == "decay" else {}
    limits = {"rtol": TOLERANCE[scale], "max_evals": LIMIT if gamma is None else THIRD}
    return replace(
        base,
        description=f"{WORDS[name]}, at most {limits['max_evals']} evaluations: {base.description}",
        model=replace(base.model, **(UNSTABLE if scale == "cpu" else {})),
        solver=replace(base.solver, **limits),
        eval_solver=None,
        adjoint=replace(base.adjoint, linear=replace(base.adjoint.linear, **limits)),
        optimizer=replace(base.optimizer, **decayed),
        regularizer=gamma and JacobianPenalty(gamma=gamma, probability=PROBABILITY),
    )
