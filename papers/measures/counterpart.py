"""The explicit networks that an equilibrium network is compared with, derived from its recipe."""

import functools
from bisect import bisect
from dataclasses import fields, replace
from typing import Any, cast

import torch

from equilibria.run.models import ModelConfig
from equilibria.run.recipe import IMPLICIT, Recipe, choices

STACKS = {"deq-transformer": "transformer-xl", "deq-trellisnet": "trellisnet"}
"""The explicit stack of the same cell, by the name of the equilibrium network."""


def explicit(recipe: Recipe, *, layers: int = 12, tied: bool = True, **options: Any) -> Recipe:
    """Return the recipe of the explicit stack of the same cell, everything else equal.

    All fields of the cell, the data, the optimiser and its schedule are those of `recipe`, so that
    both see the same tokens in the same order.

    Args:
        recipe: of an equilibrium network, one of `STACKS`.
        layers: applications of the cell.
        tied: one cell for all layers, or one per layer.
        options: other fields of the stack, such as `checkpoint`.

    Raises:
        ValueError: the network has no explicit stack.
    """
    known = choices()
    stack = {known[deq]: known[name] for deq, name in STACKS.items()}.get(type(recipe.model))
    if stack is None:
        name = type(recipe.model).__name__
        raise ValueError(f"{name} has no explicit stack; {', '.join(STACKS)} have one")
    model = _convert(recipe.model, stack, layers=layers, tied=tied, **options)
    what = f"{'tied' if tied else 'untied'} stack of {layers} layers"
    return with_model(recipe, model, f"The {what} of the cell of: {recipe.description}")


def implicit(config: ModelConfig) -> ModelConfig:
    """Return the equilibrium network of the cell of a weight-tied stack, the reverse of `explicit`.

    Raises:
        ValueError: it is not a weight-tied stack.
    """
    known = choices()
    deq = {known[name]: known[deq] for deq, name in STACKS.items()}.get(type(config))
    if deq is None or not cast(Any, config).tied:
        raise ValueError(f"{type(config).__name__} is not a weight-tied stack: {config}")
    return _convert(config, deq)


def _convert(config: Any, kind: Any, **options: Any) -> ModelConfig:
    """Return a config of a kind with the fields that it shares with another."""
    names = {field.name for field in fields(config)} & {field.name for field in fields(kind)}
    return kind(**{name: getattr(config, name) for name in names} | options)


def recurrent(recipe: Recipe, name: str, vocabulary: int, **options: Any) -> Recipe:
    """Return the recipe of an LSTM or a GRU with about as many parameters, everything else equal.

    Its width, of embedding and state, is the one with the closest number of parameters.

    Args:
        recipe: of any sequence network.
        name: `lstm` or `gru`.
        vocabulary: number of tokens of the data.
        options: other fields of the recurrent network.
    """
    aim = parameters(recipe.model, vocabulary)

    def at(width: int) -> ModelConfig:
        return choices()[name](width=width, hidden=width, **options)

    def count(width: int) -> int:
        return parameters(at(width), vocabulary)

    low = bisect(range(1, 2**14), aim, key=count)  # the count grows with the width
    width = min(max(low, 1), low + 1, key=lambda each: abs(count(each) - aim))
    return with_model(recipe, at(width), f"{name.upper()} of the size of: {recipe.description}")


@functools.cache
def parameters(config: ModelConfig, vocabulary: int | None = None) -> int:
    """Return the number of parameters of a network, without allocating them.

    Args:
        config: of the network.
        vocabulary: number of tokens, where the config leaves it to the data.
    """
    if vocabulary is not None:
        config = replace(cast(Any, config), vocabulary=vocabulary)
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in config.build().parameters())


def with_model(recipe: Recipe, model: ModelConfig, description: str | None = None) -> Recipe:
    """Return the recipe with another model in place of its own, everything else equal.

    Keys that only equilibrium networks have are unset if the model is explicit, and so is the loss
    on parts of the state if it has no heads for them.

    Args:
        recipe: of any network.
        model: of the same data.
        description: of the new recipe; None for that of the old one.
    """
    task: Any = recipe.task
    if getattr(task, "auxiliary", 0.0) and not getattr(model, "auxiliary", False):
        task = replace(task, auxiliary=0.0)
    unset: Any = {} if model.implicit else dict.fromkeys(IMPLICIT) | {"drop_finished": False}
    described = description or recipe.description
    return replace(recipe, model=model, task=task, description=described, **unset)
