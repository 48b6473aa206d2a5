"""The explicit networks that an equilibrium network is compared with, derived from its recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import torch

from equilibria.models import ModelConfig
from equilibria.train import recipe as recipes
from equilibria.train.recipe import CHOICES, IMPLICIT, Recipe

__all__ = ["explicit", "implicit", "parameters", "recurrent", "with_model"]

STACKS = {"deq-transformer": "transformer-xl", "deq-trellisnet": "trellisnet"}
"""The explicit stack of the same cell, by the name of the equilibrium network."""

OF_THE_SOLVE = {"subsequence"}
"""Fields of an equilibrium network that do not describe its cell."""


def explicit(recipe: Recipe, *, layers: int = 12, tied: bool = True, **options: Any) -> Recipe:
    """Return the recipe of the explicit stack of the same cell, everything else alike.

    All fields of the cell, the data, the optimiser and its schedule are those of `recipe`, so that
    both see the same tokens in the same order; what speaks of a fixed point falls away.

    Args:
        recipe: of an equilibrium network, one of `STACKS`.
        layers: applications of the cell.
        tied: one cell for all layers, or one a layer.
        options: other fields of the stack, such as `checkpoint`.

    Raises:
        ValueError: the network has no explicit stack, or the stack lacks a field of the cell.
    """
    tree = recipes.dump(recipe)
    model: dict[str, Any] = tree["model"]
    name = STACKS.get(model["name"])
    if name is None:
        raise ValueError(f"{model['name']} has no explicit stack; there are: {', '.join(STACKS)}")
    known = {field.name for field in dataclasses.fields(CHOICES[name])}
    cell = {key: value for key, value in model.items() if key != "name"}
    lost = sorted(set(cell) - known - OF_THE_SOLVE)
    if lost:
        raise ValueError(f"{name} has no {', '.join(lost)}, which {model['name']} has")
    kept = {key: value for key, value in cell.items() if key in known}
    kept |= {"name": name, "layers": layers, "tied": tied, **options}
    what = f"{'tied' if tied else 'untied'} stack of {layers} layers"
    return _with_model(tree, kept, f"The {what} of the cell of: {recipe.description}")


def implicit(config: ModelConfig) -> ModelConfig:
    """Return the equilibrium network of the cell of a weight-tied stack, the reverse of `explicit`.

    Raises:
        ValueError: it is no weight-tied stack.
    """
    names = {CHOICES[stack]: deq for deq, stack in STACKS.items()}
    if type(config) not in names or not cast(Any, config).tied:
        raise ValueError(f"{type(config).__name__} is no weight-tied stack: {config}")
    target = CHOICES[names[type(config)]]
    known = [field.name for field in dataclasses.fields(target) if hasattr(config, field.name)]
    return cast(ModelConfig, target(**{name: getattr(config, name) for name in known}))


def recurrent(
    recipe: Recipe, name: str, vocabulary: int, *, layers: int = 1, **options: Any
) -> Recipe:
    """Return the recipe of an LSTM or a GRU with about as many parameters, everything else alike.

    Its width, of embedding and state, is the one whose number of parameters is nearest.

    Args:
        recipe: of any sequence network.
        name: `lstm` or `gru`.
        vocabulary: number of tokens of the data.
        layers: of the recurrent network.
        options: other fields of it.
    """
    aim = parameters(recipe.model, vocabulary)

    def at(width: int) -> Any:
        return CHOICES[name](width=width, hidden=width, layers=layers, **options)

    def miss(width: int) -> int:
        return parameters(at(width), vocabulary) - aim

    low, high = 1, 2
    while miss(high) < 0:
        low, high = high, 2 * high
    while high - low > 1:  # the count grows with the width
        middle = (low + high) // 2
        low, high = (middle, high) if miss(middle) < 0 else (low, middle)
    width = min((low, high), key=lambda each: abs(miss(each)))
    model = {"name": name, **dataclasses.asdict(at(width))}
    words = f"{name.upper()} of the size of: {recipe.description}"
    return _with_model(recipes.dump(recipe), model, words)


def parameters(config: ModelConfig, vocabulary: int | None = None) -> int:
    """Return the number of parameters of a network, without making room for them.

    Args:
        config: of the network.
        vocabulary: number of tokens, where the config leaves it to the data.
    """
    if vocabulary is not None:
        config = dataclasses.replace(cast(Any, config), vocabulary=vocabulary)
    with torch.device("meta"):
        model = config.build()
    return sum(parameter.numel() for parameter in model.parameters())


def with_model(recipe: Recipe, model: ModelConfig) -> Recipe:
    """Return the recipe with another model in place of its own, everything else alike.

    What speaks of a fixed point falls away where the model is explicit, and the loss on parts of
    the state where it has no heads for them.

    Args:
        recipe: of any network.
        model: of the same data.
    """
    if not getattr(model, "auxiliary", False) and getattr(recipe.task, "auxiliary", 0.0):
        recipe = dataclasses.replace(
            recipe, task=dataclasses.replace(cast(Any, recipe.task), auxiliary=0.0)
        )
    if model.implicit:
        return dataclasses.replace(recipe, model=model)
    name = next(name for name, config in CHOICES.items() if config is type(model))
    tree = recipes.dump(recipe)
    return _with_model(tree, {"name": name, **dataclasses.asdict(model)}, recipe.description)


def _with_model(tree: Mapping[str, Any], model: dict[str, Any], description: str) -> Recipe:
    rest = {key: value for key, value in tree.items() if key not in IMPLICIT}
    return recipes.parse({**rest, "model": model, "description": description}, source=description)
