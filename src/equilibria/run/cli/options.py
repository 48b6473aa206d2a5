"""Options that applications add to the frame's commands, registered as `Application.options`."""

from __future__ import annotations

import abc
import importlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from equilibria.run import neural, plugins, registry, run
from equilibria.run.cli.parser import Parser, UserError
from equilibria.run.config import as_chosen
from equilibria.run.models import EquilibriumModel, Model
from equilibria.run.plugins import SOLVERS, change_solver
from equilibria.run.recipe import Recipe
from equilibria.solve import Solver

# --- own ------------------------------------------------------------------------------------------

# The option `--import`: a user's own files, which register tasks, models and data sets.


def add_imports(words: Sequence[str]) -> list[str]:
    """Import what `--import NAME` names on a command line, and return the other words.

    Args:
        words: of the command line; a name is a Python file or a module.

    Raises:
        ImportFailed: there is no such file or module, or it raised an error.
    """
    left, waiting = [], iter(words)
    for word in waiting:
        option, equals, name = word.partition("=")
        if option != "--import":
            left.append(word)
            continue
        name = name if equals else next(waiting, "")
        if not name or name.startswith("-"):
            raise plugins.ImportFailed("--import expects a Python file or the name of a module")
        if name.endswith(".py"):
            plugins.import_files(name, "own_")
            continue
        try:
            importlib.import_module(name)
        except Exception as error:
            message = f"--import {name}: {type(error).__name__}: {error}"
            raise plugins.ImportFailed(message) from error
    return left


# --- options --------------------------------------------------------------------------------------


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


# --- solving --------------------------------------------------------------------------------------

# The solver in place of a run's own: the option --solver.


LEARNED = "neural"


def add_solver(parser: Parser) -> None:
    """Give a command the option --solver."""
    parser.add_argument(
        "--solver",
        type=str,
        metavar="NAME",
        help=f"solve by {LEARNED}, which `equilibria distill` has learned for the run, or by "
        f"{', '.join(SOLVERS)}, or MODULE:CLASS of one's own (default: the run's own)",
    )


def resolve(given: str, known: Sequence[str] = SOLVERS) -> str:
    """Return a solver that the user has named as it is spelt; the module of his own is imported.

    Args:
        given: as he typed it.
        known: the names to choose from.

    Raises:
        UserError: there is no such solver.
        ConfigError: a solver of his own cannot be imported, or is none.
    """
    if plugins.is_path(given):
        with as_chosen("--solver"):
            plugins.import_module_of(given)
            plugins.find(given, (Solver,))
        return given
    names = {each.casefold(): each for each in known}
    if (found := names.get(given.casefold())) is None:
        raise UserError(
            f"--solver must be one of {', '.join(known)}, or MODULE:CLASS; got '{given}'"
        )
    return found


def solve_by(name: str | None, loaded: run.Run) -> dict[str, str]:
    """Let a run's model solve by a named solver, under the limits of its own.

    Args:
        name: as the option says; None for no change.
        loaded: the run.

    Returns:
        What has changed, as the files of figures note it.

    Raises:
        UserError: there is no such solver, or the run's network has none.
        RunError: it is `neural`, and the run has none of its weights.
    """
    if name is None:
        return {}
    found = resolve(name, (LEARNED, *SOLVERS))
    model = loaded.model
    if not isinstance(model, EquilibriumModel):
        raise UserError(
            f"--solver is for equilibrium networks, and {loaded.folder} is the run of an explicit "
            f"one, {loaded.recipe.model.title}"
        )
    if found == LEARNED:
        neural.attach(run.Folder(loaded.folder), model)
    else:
        model.deq.eval_solver = change_solver(model.deq.eval_solver or model.deq.solver, found)
    return {"solver": found}
