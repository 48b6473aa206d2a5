"""Options that applications add to the frame's commands, registered as `Application.options`."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, TypeVar

from equilibria.run import registry
from equilibria.run.cli.parser import Parser
from equilibria.run.models import Model
from equilibria.run.recipe import Recipe

__all__ = ["ConfigOptions", "ViewOptions", "options_of"]


class CommandOptions(abc.ABC):
    """Options of a command, and what they change."""

    @abc.abstractmethod
    def add_to(self, parser: Parser) -> None:
        """Add the options to a command."""

    @abc.abstractmethod
    def changes_of(self, arguments: Any, recipe: Recipe) -> dict[str, Any]:
        """Return the changes that the options ask for; empty if none is given.

        Args:
            arguments: of the command.
            recipe: of the run.

        Raises:
            UserError: an option does not fit the run.
        """


class ConfigOptions(CommandOptions):
    """Options that change fields of the config of a run's model, without an effect on weights."""


class ViewOptions(CommandOptions):
    """Options that say how a run's model sees samples; their changes are kept in a record."""

    @abc.abstractmethod
    def view(self, model: Model, changes: Mapping[str, Any]) -> Model:
        """Return a model that sees samples as a record says.

        Args:
            model: of the run.
            changes: of all applications, as `changes_of` returns them.

        Raises:
            UserError: it cannot.
        """

    @abc.abstractmethod
    def describe(self, changes: Mapping[str, Any]) -> str:
        """Return what follows the title of a table, ", mirrored"; "" for samples seen as usual."""


Options = TypeVar("Options", ConfigOptions, ViewOptions)


def options_of(command: str, kind: type[Options]) -> list[Options]:
    """Return the options of a kind that applications add to a command, in the order of these."""
    found = registry.find("options").items()
    own = [registry.resolve(place) for name, place in found if name.partition(".")[0] == command]
    return [each() for each in own if issubclass(each, kind)]
