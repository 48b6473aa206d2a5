"""How far a Transformer looks back: the option --memory."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from typing_extensions import override

from equilibria.run.cli.options import ConfigOptions
from equilibria.run.cli.parser import Parser, UserError
from equilibria.run.recipe import Recipe


class MemoryOption(ConfigOptions):
    """The option --memory of `equilibria evaluate`."""

    @override
    def add_to(self, parser: Parser) -> None:
        parser.add_argument(
            "--memory", type=int, help="tokens before a segment that a Transformer sees"
        )

    @override
    def changes_of(self, arguments: Any, recipe: Recipe) -> dict[str, Any]:
        memory = arguments.memory
        return {} if memory is None else change_memory(recipe, memory, minimum=0)


def change_memory(recipe: Recipe, memory: int, minimum: int) -> dict[str, int]:
    """Return how far a Transformer looks back, as a change of its config.

    Args:
        recipe: of the run.
        memory: tokens.
        minimum: that the command can work with.

    Raises:
        UserError: `memory` is below `minimum`, or the model has none to set.
    """
    if not has_memory(recipe):
        raise UserError(
            f"--memory is for Transformers, and {type(recipe.model).__name__} is not one: its "
            "memory is its state"
        )
    if memory < minimum:
        raise UserError(f"--memory must be {minimum} or more; got {memory}")
    return {"eval_memory": memory}


def has_memory(recipe: Recipe) -> bool:
    """Return whether the model of a recipe looks back on a number of tokens that can be set."""
    return "eval_memory" in {field.name for field in fields(recipe.model)}
