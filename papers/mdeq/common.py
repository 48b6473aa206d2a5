"""The networks of Table 3.1, all about as large as the multiscale one, and their trainings."""

import functools
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from equilibria.run import recipe as recipes
from equilibria.run.models import ModelConfig
from equilibria.run.recipe import Recipe
from equilibria.run.studies.study import Scale
from equilibria.run.studies.training import Training
from equilibria.zoo.vision.model.explicit import ResNetConfig
from equilibria.zoo.vision.model.mdeq import MDEQConfig
from equilibria.zoo.vision.model.ode import AugmentedNeuralODEConfig, NeuralODEConfig
from papers.measures import counterpart

SEEDS: Sequence[int] = (0, 1, 2)
IMAGES: Mapping[str, str] = {"cifar10": "CIFAR-10", "mnist": "MNIST"}
RECIPES: Mapping[str, Mapping[Scale, str]] = {
    "cifar10": {"cpu": "mdeq-cifar10-16", "gpu": "mdeq-cifar10-small-gpu"},
    "mnist": {"cpu": "mdeq-mnist-16", "gpu": "mdeq-mnist-16"},
}
"""Of the multiscale network."""
SHAPES = {"cifar10": (3, 32, 32), "mnist": (1, 28, 28)}
"""Of an image of one of 10 classes that is not resized."""

NAMES: Mapping[str, str] = {
    "neural-ode": "neural ODE",
    "augmented-neural-ode": "augmented neural ODE",
    "single": "single-stream DEQ",
    "resnet": "ResNet",
    "mdeq": "MDEQ",
}
"""In the order of the table."""
RATES: Mapping[str, float] = {"resnet": 0.6}
"""Learning rates other than the multiscale network's, in units of it."""
LOOSE = 1e-2
"""Tolerances of the ODEs, the slowest of all networks to train; as loose as the others' solves."""

Maker = Callable[[MDEQConfig, int, int], ModelConfig]
"""(the multiscale network, pixels of a side, width) -> a network that grows with its width."""


def _ode(kind: Any, model: MDEQConfig, side: int, width: int) -> ModelConfig:
    return kind(filters=width, rtol=LOOSE, atol=LOOSE)


def _single(deeper: int, model: MDEQConfig, side: int, width: int) -> ModelConfig:
    """The same cell and head at the highest resolution alone."""
    return replace(
        model,
        channels=(width * model.groups,),
        head_channels=model.head_channels[-1:],
        expansion=max(1, model.expansion + deeper),
    )


def _resnet(model: MDEQConfig, side: int, width: int) -> ModelConfig:
    """The proportions of ResNet-18; small images leave nothing for its fourth stage."""
    stages = 4 if side >= 32 else 3
    return ResNetConfig(widths=tuple(width * 2**n for n in range(stages)), blocks=(2,) * stages)


MAKERS: Mapping[str, Sequence[Maker]] = {
    "neural-ode": [partial(_ode, NeuralODEConfig)],
    "augmented-neural-ode": [partial(_ode, AugmentedNeuralODEConfig)],
    "single": [partial(_single, deeper) for deeper in (0, -1, 1)],
    "resnet": [_resnet],
}


def training_of(data: str, kind: str, scale: Scale, seed: int = 0) -> Training:
    """Return the training of a network; the arguments are those of `recipe_of`."""
    recipe = recipe_of(data, kind, scale, seed)
    return Training(recipe, {"cpu": 10, "gpu": 30}[scale])


def recipe_of(data: str, kind: str, scale: Scale, seed: int = 0) -> Recipe:
    """Return the recipe of one of `NAMES` on one of `IMAGES`: that of the multiscale network but
    for the model and its rate."""
    return replace(_recipe(data, kind, scale), seed=seed)


@functools.cache
def _recipe(data: str, kind: str, scale: Scale) -> Recipe:
    recipe: Any = recipes.load(RECIPES[data][scale])
    if kind not in MAKERS:
        return recipe
    rate = RATES.get(kind, 1.0) * recipe.optimizer.lr
    recipe = replace(recipe, optimizer=replace(recipe.optimizer, lr=rate))
    description = f"{NAMES[kind]} as large as the network of: {recipe.description}"
    return counterpart.with_model(recipe, _model_of(data, kind, recipe), description)


def _model_of(data: str, kind: str, recipe: Recipe) -> ModelConfig:
    """The network whose number of parameters is the nearest to the multiscale network's."""
    size = partial(parameters, data, recipe)
    found: list[ModelConfig] = []
    for maker in MAKERS[kind]:
        side = _shape(data, recipe)[1]
        made = [maker(cast(MDEQConfig, recipe.model), side, width) for width in range(1, 257)]
        place = bisect_left(made, size(), key=size)
        found += made[max(0, place - 1) : place + 1]
    return min(found, key=lambda each: abs(size(each) - size()))


def parameters(data: str, recipe: Recipe, model: ModelConfig | None = None) -> int:
    """Return the number of parameters of a recipe's network, or of another of the same images."""
    whole = replace(cast(Any, model or recipe.model), shape=_shape(data, recipe), classes=10)
    return counterpart.parameters(whole)


def _shape(data: str, recipe: Recipe) -> tuple[int, int, int]:
    channels, height, width = SHAPES[data]
    size = cast(Any, recipe.task).size
    return channels, size or height, size or width
