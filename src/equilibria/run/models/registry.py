"""Models by name."""

import dataclasses
from typing import Any

from equilibria.run import registry
from equilibria.run.models.base import Model, ModelConfig
from equilibria.words import nearest

LAYER = ("solver", "eval_solver", "adjoint", "drop_finished")
"""Keywords of `create` that go to the `DEQ` layer of a model that has one."""


def available() -> list[str]:
    """Return the names that `create` knows."""
    return sorted(registry.find("models"))


def config_of(name: str) -> type[ModelConfig]:
    """Return the config of a model, whose module is imported here.

    Raises:
        ValueError: there is no such model; the message names the nearest.
    """
    if name not in registry.find("models"):
        raise ValueError(f"there is no model '{name}'" + nearest(name, available()))
    return registry.resolve(registry.find("models")[name])


def register(name: str, config: type[ModelConfig]) -> None:
    """Let `create` and recipes name a model.

    Args:
        name: of the model.
        config: a frozen dataclass that builds it.

    Raises:
        ValueError: the name is taken.
    """
    if registry.find("models").setdefault(name, config) is not config:
        raise ValueError(f"there is a model '{name}' already")


def create(name: str, **overrides: Any) -> Model:
    """Build the model `name`.

    Args:
        name: one of `available()`.
        **overrides: fields of the model's config, for example `width=128`, and keywords of its
            `DEQ` layer: `solver`, `eval_solver`, `adjoint`, `drop_finished`.

    Raises:
        ValueError: there is no such model, or a field has an impossible value.
        TypeError: the model has no such field; the message names the nearest.

    Example:
        >>> model = create("dense", width=64)
    """
    config = config_of(name)
    fields = [field.name for field in dataclasses.fields(config)]
    for key in overrides:
        if key not in (*fields, *LAYER):
            raise TypeError(f"model '{name}' has no field '{key}'" + nearest(key, fields))
    layer = {key: overrides.pop(key) for key in LAYER if key in overrides}
    return config(**overrides).build(**layer)
