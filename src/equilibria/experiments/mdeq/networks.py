"""The networks of Table 3.1, each of the multiscale network's size, and their trainings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from equilibria.experiments import counterpart, trainings
from equilibria.experiments.case import Case
from equilibria.experiments.experiment import Scale
from equilibria.experiments.training import training
from equilibria.models import ModelConfig
from equilibria.models.vision.mdeq import MDEQConfig
from equilibria.models.vision.ode import AugmentedNeuralODEConfig, NeuralODEConfig
from equilibria.models.vision.resnet import ResNetConfig
from equilibria.tasks.classification import ImageClassification
from equilibria.train.recipe import Recipe

__all__ = [
    "DATA",
    "LOOSE",
    "NETWORKS",
    "SEEDS",
    "Images",
    "Network",
    "base",
    "key",
    "model_of",
    "parameters",
    "recipe_of",
    "training_of",
]

CLASSES = 10

SEEDS: Sequence[int] = (0, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Images:
    """A set of images that the networks are trained on.

    Args:
        words: its name for a reader.
        recipe: of the multiscale network, by scale.
        channels: of an image.
        side: pixels of an image that is not resized.
        published: whether the thesis prints figures of it.
    """

    words: str
    recipe: Mapping[Scale, str]
    channels: int
    side: int
    published: bool = False


DATA: Mapping[str, Images] = {
    "cifar10": Images(
        words="CIFAR-10",
        recipe={"cpu": "mdeq-cifar10-16", "gpu": "mdeq-cifar10-small-gpu"},
        channels=3,
        side=32,
        published=True,
    ),
    "mnist": Images(
        words="MNIST",
        recipe={"cpu": "mdeq-mnist-16", "gpu": "mdeq-mnist-16"},
        channels=1,
        side=28,
    ),
}
"""By the name that keys of cases give them."""

Candidates = Callable[[MDEQConfig, int], Iterator[ModelConfig]]
"""(the multiscale network, pixels of a side) -> networks of a kind, from small to large."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A kind of network, trained as the multiscale one is.

    Args:
        words: its name for a reader.
        published: that of its row in Table 3.1, on CIFAR-10 without augmentation.
        candidates: of which the one with the nearest number of parameters is taken; None for the
            multiscale network itself.
        rate: learning rate at its highest, in units of the recipe's.
    """

    words: str
    published: str
    candidates: Candidates | None = None
    rate: float = 1.0


LOOSE = 1e-2
"""Tolerances of the ODEs, which take longest of all networks; as loose as the others' solves."""


def _odes(model: MDEQConfig, side: int) -> Iterator[ModelConfig]:
    return (NeuralODEConfig(filters=n, rtol=LOOSE, atol=LOOSE) for n in range(8, 193))


def _augmented(model: MDEQConfig, side: int) -> Iterator[ModelConfig]:
    return (AugmentedNeuralODEConfig(filters=n, rtol=LOOSE, atol=LOOSE) for n in range(8, 193))


def _single(model: MDEQConfig, side: int) -> Iterator[ModelConfig]:
    """The same cell and head at the highest resolution alone; as deep a block where that fits."""
    for width in range(model.groups, 16 * model.groups, model.groups):
        for expansion in (model.expansion, model.expansion - 1, model.expansion + 1):
            yield replace(
                model,
                channels=(width,),
                head_channels=model.head_channels[-1:],
                expansion=max(1, expansion),
            )


def _resnets(model: MDEQConfig, side: int) -> Iterator[ModelConfig]:
    """The proportions of ResNet-18, whose fourth stage small images leave nothing to."""
    stages = 4 if side >= 32 else 3
    for width in range(2, 65):
        widths = tuple(width * 2**stage for stage in range(stages))
        yield ResNetConfig(widths=widths, blocks=(2,) * stages)


NETWORKS: Mapping[str, Network] = {
    "neural-ode": Network(words="neural ODE", published="Neural ODE", candidates=_odes),
    "augmented-neural-ode": Network(
        words="augmented neural ODE", published="augmented Neural ODE", candidates=_augmented
    ),
    "single": Network(words="single-stream DEQ", published="single-stream DEQ", candidates=_single),
    "resnet": Network(words="ResNet", published="ResNet-18", candidates=_resnets, rate=0.6),
    "mdeq": Network(words="MDEQ", published="MDEQ-small"),
}
"""By the name that keys of cases give them, in the order of the table."""


def key(data: str, kind: str, seed: int) -> str:
    """Return the key of a training: of one of `DATA` and one of `NETWORKS`."""
    return f"{data}-{kind}-{seed}"


def training_of(data: str, kind: str, scale: Scale, seed: int) -> Case:
    """Return the shared case that trains a network.

    Args:
        data: one of `DATA`.
        kind: one of `NETWORKS`.
        scale: size of the recipe.
        seed: of the training.
    """
    return training(
        key(data, kind, seed),
        recipe_of(data, kind, scale, seed),
        _minutes(scale),
    )


def base(data: str, scale: Scale, seed: int = 0) -> Recipe:
    """Return the recipe of the multiscale network on one of `DATA`."""
    return trainings.named(DATA[data].recipe[scale], "cpu", "--seed", str(seed))


def recipe_of(data: str, kind: str, scale: Scale, seed: int = 0) -> Recipe:
    """Return a network's recipe: that of the multiscale network but for the model and its rate.

    What speaks of a fixed point falls away where there is none.

    Args:
        data: one of `DATA`.
        kind: one of `NETWORKS`.
        scale: size of the recipe.
        seed: of the training.
    """
    recipe, network = base(data, scale, seed), NETWORKS[kind]
    if network.candidates is None:
        return recipe
    recipe = replace(
        recipe,
        optimiser=replace(recipe.optimiser, lr=network.rate * recipe.optimiser.lr),
        description=f"The {network.words} of the size of: {recipe.description}",
    )
    return counterpart.with_model(recipe, model_of(data, kind, scale))


@functools.cache
def model_of(data: str, kind: str, scale: Scale) -> ModelConfig:
    """Return the architecture of a network, shape and classes left to the data.

    Of its candidates the one whose number of parameters is the nearest to the multiscale network's.
    """
    recipe, candidates = base(data, scale), NETWORKS[kind].candidates
    model = cast(MDEQConfig, recipe.model)
    if candidates is None:
        return model
    side = _shape(data, recipe)[1]
    aim = parameters(data, model, recipe)

    best: tuple[int, ModelConfig] | None = None
    for candidate in candidates(model, side):
        count = parameters(data, candidate, recipe)
        if best is None or abs(count - aim) < best[0]:
            best = abs(count - aim), candidate
        if count > 2 * aim:  # the rest are larger still
            break
    assert best is not None
    return best[1]


def parameters(data: str, model: ModelConfig, recipe: Recipe) -> int:
    """Return the number of parameters of a model on images as the recipe takes them."""
    whole = replace(cast(Any, model), shape=_shape(data, recipe), classes=CLASSES)
    with torch.device("meta"):
        network = whole.build()
    return sum(parameter.numel() for parameter in network.parameters())


def _shape(data: str, recipe: Recipe) -> tuple[int, int, int]:
    images = DATA[data]
    side = cast(ImageClassification, recipe.task).size or images.side
    return images.channels, side, side


def _minutes(scale: Scale) -> float:
    return {"cpu": 10.0, "gpu": 30.0}[scale]
